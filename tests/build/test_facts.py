"""Reading machine code: on listings written by hand."""

from tle_attn.build.facts import Facts, innermost_wgmma_loop, opcode_name, parse_sass

SASS = """
        .section        .text.k,"ax",@progbits
.text.k:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P0 BRA `(.L_x_3) ;
.L_x_1:
        /*0020*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R2 ;
.L_x_2:
        /*0030*/                   HGMMA.64x8x16.F32.BF16 R24, gdesc[UR4], R24 ;
        /*0040*/             @UP0  UIADD3 UR4, UR4, 0x1, URZ ;
        /*0050*/               @P1 BRA `(.L_x_2) ;
        /*0060*/                   MUFU.EX2 R3, R4 ;
        /*0070*/                   STSM.16.M88.4 [R5], R8 ;
        /*0080*/               @P2 BRA `(.L_x_1) ;
.L_x_3:
        /*0090*/                   EXIT ;
.L_x_4:
        /*00a0*/                   BRA `(.L_x_4);
        /*00b0*/                   NOP;
        /*00c0*/                   NOP;
"""


def test_instructions_and_labels():
    code, labels = parse_sass(SASS)
    names = "LDC BRA SYNCS.PHASECHK.TRANS64.TRYWAIT HGMMA.64x8x16.F32.BF16 UIADD3 BRA MUFU.EX2 STSM.16.M88.4 BRA EXIT BRA"
    assert [name for name, _ in code] == names.split()
    assert labels == {".L_x_1": 2, ".L_x_2": 3, ".L_x_3": 9, ".L_x_4": 10}


def test_innermost_loop_with_a_wgmma():
    code, labels = parse_sass(SASS)
    assert innermost_wgmma_loop(code, labels) == ["HGMMA.64x8x16.F32.BF16", "UIADD3", "BRA"]
    assert innermost_wgmma_loop(*parse_sass(SASS.replace("HGMMA", "FFMA"))) == []


def test_a_jump_back_over_the_end_is_no_loop():
    """Code that is moved behind the kernel's end comes back from there."""
    back = SASS.replace("/*00a0*/                   BRA `(.L_x_4)", "/*00a0*/                   BRA `(.L_x_2)").replace("@P1 BRA `(.L_x_2)", "@P1 BRA `(.L_x_3)")
    assert [name.split(".")[0] for name in innermost_wgmma_loop(*parse_sass(back))] == ["SYNCS", "HGMMA", "UIADD3", "BRA", "MUFU", "STSM", "BRA"]


def test_names_under_which_opcodes_are_counted():
    names = ["HGMMA.64x8x16.F32.BF16", "MUFU.EX2", "BAR.SYNC.DEFER_BLOCKING", "BAR.ARV", "LDSM.16.M88.4", "SYNCS.ARRIVE.TRANS64", "EXIT"]
    assert [opcode_name(n) for n in names] == ["HGMMA", "MUFU.EX2", "BAR.SYNC", "BAR.ARV", "LDSM", "SYNCS.ARRIVE", "EXIT"]


def test_facts_survive_json():
    import json

    facts = Facts(128, 0, 4, 1024, 0, 10, {"EXIT": 1}, 3, {"HGMMA": 1}, ("(C7510) x",))
    assert Facts.from_dict(json.loads(json.dumps(facts.to_dict()))) == facts
