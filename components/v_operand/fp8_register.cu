// V^T of a 64-token e4m3 tile for TLE-Raw: the register fragment of fp8_register.gluon.py, spelled out per thread and written as a row-major [128 d', 64 t'] tile.
//   d' = 16 (d >> 4) + 8 (d & 1) + ((d >> 1) & 7);  t' of each group of 16 tokens = 2 (t & 7) + (t >> 3)
// ABI of TLE-Raw: (allocated pointer, aligned pointer, offset, sizes, strides) for each operand, in address space 3.
#include <stdint.h>

#define SHARED __attribute__((address_space(3)))

extern "C" __device__ void tle_attn_take_v_fp8(
    SHARED uint8_t *, SHARED uint8_t *destination, int64_t destination_offset, int64_t, int64_t, int64_t destination_stride, int64_t,
    SHARED uint8_t *, SHARED uint8_t *source, int64_t source_offset, int64_t, int64_t, int64_t, int64_t)
{
    // the tile has 128-byte rows, swizzled: 16-byte chunk c of token t lies at chunk c ^ (t & 7)
    for (int i = threadIdx.x % 128; i < 64 * 128; i += 128) {
        const int t = i >> 7, d = i & 127;
        const uint8_t value = source[source_offset + t * 128 + ((((d >> 4) ^ (t & 7)) << 4) | (d & 15))];
        const int row = 16 * (d >> 4) + 8 * (d & 1) + ((d >> 1) & 7);
        const int column = (t & ~15) + 2 * (t & 7) + ((t >> 3) & 1);
        destination[destination_offset + row * destination_stride + column] = value;
    }
}
