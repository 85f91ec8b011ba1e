// V^T of a tile of e4m3 for TLE-Raw: what fp8_transpose.gluon.py makes, spelled out per thread and written as a row-major [dim d', keys t'] tile.
//   d' = (d & 1) * dim / 2 + (d >> 1);  t' of each 16 keys takes the bits (b3 b2 b1 b0) of t to (b2 b1 b3 b0)
// ABI of TLE-Raw: (allocated pointer, aligned pointer, offset, sizes, strides) for each operand, in address space 3.
#include <stdint.h>

#define SHARED __attribute__((address_space(3)))

extern "C" __device__ void tle_attn_transpose_v_fp8(
    SHARED uint8_t *, SHARED uint8_t *destination, int64_t destination_offset, int64_t, int64_t, int64_t destination_stride, int64_t,
    SHARED uint8_t *, SHARED uint8_t *source, int64_t source_offset, int64_t keys, int64_t dim, int64_t, int64_t)
{
    // column blocks of 128 bytes or less, swizzled over their width: the 16-byte chunk c of key t lies at c ^ (t & 7) for 128 bytes, at c ^ ((t >> 1) & 3) for 64
    const int width = dim < 128 ? (int)dim : 128;
    for (int i = threadIdx.x % 128; i < keys * dim; i += 128) {
        const int t = i / (int)dim, d = i % (int)dim;
        const int swizzle = width == 128 ? t & 7 : (t >> 1) & 3, c = d % width;
        const uint8_t value = source[source_offset + (d / width * keys + t) * width + ((((c >> 4) ^ swizzle) << 4) | (c & 15))];
        const int row = (d & 1) * ((int)dim / 2) + (d >> 1);
        const int column = (t & ~15) | ((t & 6) << 1) | ((t >> 2) & 2) | (t & 1);
        destination[destination_offset + row * destination_stride + column] = value;
    }
}
