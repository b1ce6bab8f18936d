// What the backward kernels share: tiles with borders, products over them, and derivatives.

#include "device.cuh"

constexpr u32 OUTSIDE = 0xfc00fc00;  // minus infinity twice: norm and ReLU turn it into zero

// The range of tiles that block x goes through.
struct Range {
  int item, end;
  __device__ __forceinline__ Range(int n_items)
      : item((long long)n_items * blockIdx.x / gridDim.x),
        end((long long)n_items * (blockIdx.x + 1) / gridDim.x) {}
};

__device__ __forceinline__ void split(u32 (&v)[4], uint4 raw) {
  v[0] = raw.x, v[1] = raw.y, v[2] = raw.z, v[3] = raw.w;
}

__device__ __forceinline__ uint4 join(const u32 (&v)[4]) {
  return make_uint4(v[0], v[1], v[2], v[3]);
}

__device__ __forceinline__ uint4 load8(const u16* p) { return __ldg((const uint4*)p); }

// Beyond the largest 16-bit float lies infinity, which one step of training would not survive.
__device__ __forceinline__ float bounded(float x) { return fminf(fmaxf(x, -65504.f), 65504.f); }

// The same for pairs of 16 bit. Zero times infinity is not zero: few instructions find what is rare.
template <int N>
__device__ __forceinline__ void keep_finite(u32 (&v)[N][4]) {
  u32 found = 0;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    u32 none = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) none = fma2(v[k][i], 0, none);
    found |= none;
  }
  if (found == 0) return;
#pragma unroll
  for (int k = 0; k < N; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      u32& pair = v[k][i];
      if ((pair & 0x7c00) == 0x7c00) pair = (pair & 0xffff8000) | 0x7bff;
      if ((pair & 0x7c000000) == 0x7c000000) pair = (pair & 0x8000ffff) | 0x7bff0000;
    }
  }
}

// Copy C channels of an image's factors to shared memory, ordered so that neighbors read neighbors.
template <int C, int THREADS>
__device__ __forceinline__ void read_factors(float4* to, const float4* from) {
  for (int c = threadIdx.x; c < C; c += THREADS) to[c % 8 * (C / 8) + c / 8] = __ldg(from + c);
}

// The derivative by PIXELS values of which the largest was pooled, for eight channels, in place. Of
// equal values the first one was pooled. `gradient` is by the pooled value, after norm and ReLU;
// factors lie VECTORS apart: the norm's scale and shift, and a line that instance norm adds.
template <int PIXELS, int VECTORS>
__device__ __forceinline__ void differentiate(u32 (&v)[PIXELS][4], const u32 (&gradient)[4],
                                              const float4* factors) {
#pragma unroll
  for (int pair = 0; pair < 4; ++pair) {
    float x[PIXELS][2], g[2], most[2];
    u32 largest = v[0][pair];
#pragma unroll
    for (int k = 1; k < PIXELS; ++k) largest = max2(largest, v[k][pair]);
    unpack(largest, most[0], most[1]);
    unpack(gradient[pair], g[0], g[1]);
#pragma unroll
    for (int k = 0; k < PIXELS; ++k) unpack(v[k][pair], x[k][0], x[k][1]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float4 f = factors[(pair * 2 + i) * VECTORS];
      float raised = fmaf(most[i], f.x, f.y) > 0.f ? fmaf(g[i], f.x, f.w) : f.w;
      bool is_open = true;  // none was the largest so far
#pragma unroll
      for (int k = 0; k < PIXELS; ++k) {
        bool is_most = k + 1 == PIXELS || x[k][i] == most[i];
        x[k][i] = fmaf(x[k][i], f.z, is_open && is_most ? raised : f.w);
        is_open = is_open && !is_most;
      }
    }
#pragma unroll
    for (int k = 0; k < PIXELS; ++k) v[k][pair] = pack(x[k][0], x[k][1]);
  }
  keep_finite(v);
}

// Factors of eight channels from `c` on, kept until the image changes.
template <int C>
struct Factors {
  float4 own[8];
  int known = -1;
  __device__ __forceinline__ void fetch(const float4* factors, int image, int c) {
    if (image == known) return;
    known = image;
#pragma unroll
    for (int i = 0; i < 8; ++i) own[i] = __ldg(factors + (long long)image * C + c + i);
  }
};

// The same channels of a window of 2 x 2 pixels, fetched long before they become its derivative.
template <int H, int W, int C>
struct Window {
  uint4 raw[5];  // four pixels and the gradient by the largest
  __device__ __forceinline__ void fetch(const u16* values, const u16* gradient, int image, int y,
                                        int x, int c) {
    long long row = (long long)image * (H / 2) + y;
    const u16* from = values + (2 * row * W + 2 * x) * C + c;
#pragma unroll
    for (int k = 0; k < 4; ++k) raw[k] = load8(from + (k / 2 * W + k % 2) * C);
    raw[4] = load8(gradient + (row * (W / 2) + x) * C + c);
  }
  __device__ __forceinline__ void differentiate_to(u32 (&v)[4][4], const Factors<C>& factors) const {
    u32 above[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) split(v[k], raw[k]);
    split(above, raw[4]);
    differentiate<4, 1>(v, above, factors.own);
  }
};

// Start to copy VECTORS x 8 channels of a tile and its border from a C-channel H x W image. Pixels
// lie VECTORS x 16 + 16 bytes apart, so that eight of them hit different banks. A thread stays in
// one column.
template <int H, int W, int C, int TH, int TW, int VECTORS, int THREADS, u32 BORDER>
__device__ __forceinline__ void copy_tile(unsigned char* tile, const u16* image, int ty, int tx) {
  constexpr int STRIDE = VECTORS * 16 + 16, ROW = (TW + 2) * VECTORS, STEP = THREADS / ROW;
  static_assert(STEP > 0, "more threads than vectors in a row");
  int row = threadIdx.x / ROW, col = threadIdx.x % ROW / VECTORS, vector = threadIdx.x % VECTORS;
  int y = ty - 1 + row, x = tx - 1 + col;
  if (row >= STEP) return;
  bool lies_beside = (u32)x >= W;
  unsigned char* to = tile + (row * (TW + 2) + col) * STRIDE + vector * 16;
  u32 address = shared_address(to);
  const u16* from = image + (y * W + x) * C + vector * 8;
#pragma unroll
  for (int k = 0; k < TH + 2; k += STEP) {
    if (k + STEP > TH + 2 && row + k >= TH + 2) continue;
    // Only the first and the last row may lie above or below the image.
    bool may_lie_outside = k == 0 || k + STEP >= TH + 2;
    if (lies_beside || (may_lie_outside && (u32)(y + k) >= H))
      *(uint4*)(to + k * (TW + 2) * STRIDE) = make_uint4(BORDER, BORDER, BORDER, BORDER);
    else
      copy_ahead(address + k * (TW + 2) * STRIDE, from + k * W * C);
  }
}

// The 16 pixels of a product lie in one row of a tile, or in two where rows are short. A warp's
// products lie one below the other.
template <int TW, int MT>
struct Place {
  static constexpr int LENGTH = TW < 16 ? TW : 16, ROWS = 16 / LENGTH, COLS = TW / LENGTH;
  int y, x;  // of the warp's first pixel
  __device__ __forceinline__ Place(int warp) : y(warp / COLS * MT * ROWS), x(warp % COLS * LENGTH) {}
};

// Scale and shift of one channel's norm twice, as pairs of 16 bit. The shift goes with the scale as
// rounded, which stays above zero.
__device__ __forceinline__ uint2 norm_pair(float2 norm) {
  u16 rounded = to_half(fmaxf(norm.x, 1e-6f));
  float scale, none;
  unpack(rounded, scale, none);
  u16 shift = to_half(bounded(norm.y * (scale / norm.x)));
  return make_uint2(rounded * 0x10001u, shift * 0x10001u);
}

// Add the products of 32 channels of a derivative and eight of what the convolution read, for all
// taps, over TH rows of a tile, 16 columns wide or TW. Both addresses are of the first pixel without
// border's upper left; pixels of the derivative lie D_PITCH to a row and D_STRIDE bytes apart. The
// norm is of channel lane / 4. Each row is read once for the taps that use it.
template <int TH, int TW, int D_PITCH, int D_STRIDE, int X_STRIDE>
__device__ __forceinline__ void correlate(float (&acc)[9][2][4], u32 derivative, u32 read,
                                          uint2 norm) {
  constexpr int LENGTH = TW < 16 ? TW : 16, ROWS = 16 / LENGTH, X_ROW = (TW + 2) * X_STRIDE;
  static_assert(TH % ROWS == 0, "tiling");
  // Rows of the matrices that a lane names are pixels: see load_transposed. Of what was read, a load
  // brings two taps: the first two of a row, or the third of a row and of the next. Where rows are
  // short, the last loads pass the tile's end; nothing uses what they bring.
  int lane = threadIdx.x % 32, out = lane % 8 + lane / 16 * 8, in = lane % 16;
  derivative += (out / LENGTH * D_PITCH + out % LENGTH) * D_STRIDE + lane / 8 % 2 * 16;
  u32 first_two = read + in / LENGTH * X_ROW + (in % LENGTH + lane / 16) * X_STRIDE;
  u32 third = read + (in / LENGTH + lane / 16) * X_ROW + (in % LENGTH + 2) * X_STRIDE;
  u32 left[TH / ROWS][2][4];
#pragma unroll
  for (int first = 0; first + ROWS <= TH + 2; first += 2) {
    u32 taps[3][4];
    load_transposed(taps[0], first_two + first * X_ROW);
    load_transposed(taps[1], third + first * X_ROW);
    load_transposed(taps[2], first_two + (first + 1) * X_ROW);
#pragma unroll
    for (int i = 0; i < 12; ++i) taps[i / 4][i % 4] = fma_relu2(taps[i / 4][i % 4], norm.x, norm.y);
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      int r = first + below;
#pragma unroll
      for (int m = 0; m < 2; ++m)
        if (r % ROWS == 0 && r < TH)
          load_transposed(left[r / ROWS][m], derivative + r * D_PITCH * D_STRIDE + m * 32);
#pragma unroll
      for (int tap = 0; tap < 9; ++tap) {
        int y = r - tap / 3, dx = tap % 3;
        if (y < 0 || y % ROWS || y >= TH) continue;
        const u32* right = dx == 2 ? taps[1] + 2 * below : taps[2 * below] + 2 * dx;
        multiply(acc[tap][0], left[y / ROWS][0], right[0], right[1]);
        multiply(acc[tap][1], left[y / ROWS][1], right[0], right[1]);
      }
    }
  }
}

// Write what a warp found: [tap][COUT][CIN]. `out` belongs to the first of its channels.
template <int COUT, int CIN>
__device__ __forceinline__ void write_weights(const float (&acc)[9][2][4], float* out) {
  int lane = threadIdx.x % 32;
  out += lane / 4 * CIN + lane % 4 * 2;
#pragma unroll
  for (int tap = 0; tap < 9; ++tap) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      float* at = out + tap * COUT * CIN + m * 16 * CIN;
      *(float2*)at = make_float2(acc[tap][m][0], acc[tap][m][1]);
      *(float2*)(at + 8 * CIN) = make_float2(acc[tap][m][2], acc[tap][m][3]);
    }
  }
}

// Add 16 channels of a tile times weights. Pixels are read once for the three rows of taps that use
// them. `tile` is the lane's address; a tap's weights are TAP vectors further than those before.
template <int TW, int MT, int NT, int TAP, int STRIDE>
__device__ __forceinline__ void multiply_tile(float (&acc)[MT][NT][4], u32 tile,
                                              const uint4* weights) {
  constexpr int ROWS = Place<TW, MT>::ROWS;
#pragma unroll
  for (int dx = 0; dx < 3; ++dx) {
    uint4 w[3][NT / 2];
#pragma unroll
    for (int dy = 0; dy < 3; ++dy)
#pragma unroll
      for (int n = 0; n < NT / 2; ++n)
        w[dy][n] = weights[(dy * 3 + dx) * TAP + n * 32 + threadIdx.x % 32];
#pragma unroll
    for (int r = 0; r < (MT - 1) * ROWS + 3; ++r) {
      u32 pixels[4];
      load_matrices(pixels, tile + (r * (TW + 2) + dx) * STRIDE);
#pragma unroll
      for (int dy = 0; dy < 3; ++dy) {
        int m = (r - dy) / ROWS;
        if (r < dy || (r - dy) % ROWS || m >= MT) continue;
#pragma unroll
        for (int n = 0; n < NT / 2; ++n) {
          multiply(acc[m][2 * n], pixels, w[dy][n].x, w[dy][n].y);
          multiply(acc[m][2 * n + 1], pixels, w[dy][n].z, w[dy][n].w);
        }
      }
    }
  }
}

// Write a warp's part of the gradient by what a convolution read, C channels, and the sums that the
// layer before needs of it: of the gradient that passes its ReLU, and of that times its normalized
// value. `values(row, col, channel)` are four channels of that layer before its norm, from which no
// gradient passes where not `is_inside(row, col)`. A lane holds four channels side by side. `out`,
// `norms` and `sums` belong to the tile's first pixel and the warp's first channel.
template <int W, int C, int TW, int MT, int NT, class Values, class Inside>
__device__ __forceinline__ void write_gradient(const float (&acc)[MT][NT][4], u16* out,
                                               const float2* norms, float2* sums,
                                               Place<TW, MT> place, Values values,
                                               Inside is_inside) {
  using P = Place<TW, MT>;
  int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < NT; n += 2) {
    float v[8] = {};
    float2 norm[4];
    int c = n * 8 + lane % 4 * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) norm[i] = __ldg(norms + c + i);
#pragma unroll
    for (int m = 0; m < MT; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int p = lane / 4 + half * 8;
        int y = place.y + m * P::ROWS + p / P::LENGTH, x = place.x + p % P::LENGTH;
        const float *a = acc[m][n] + 2 * half, *b = acc[m][n + 1] + 2 * half;
        float g[4] = {bounded(a[0]), bounded(a[1]), bounded(b[0]), bounded(b[1])}, z[4];
        // As one number, because the compiler splits a vector of two in two writes.
        unsigned long long both = pack(g[0], g[1]) | (unsigned long long)pack(g[2], g[3]) << 32;
        if (is_inside(y, x)) *(unsigned long long*)(out + (y * W + x) * C + c) = both;
        uint2 raw = values(y, x, c);
        unpack(raw.x, z[0], z[1]), unpack(raw.y, z[2], z[3]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          z[i] = fmaf(z[i], norm[i].x, norm[i].y);
          float passed = z[i] > 0.f ? g[i] : 0.f;
          v[i] += passed, v[4 + i] = fmaf(passed, z[i], v[4 + i]);
        }
      }
    }
    // Add over the eight lanes that hold the same channels; each step halves what a lane keeps.
#pragma unroll
    for (int keep = 4; keep > 0; keep /= 2) {
      bool upper = lane & keep * 4;
#pragma unroll
      for (int i = 0; i < keep; ++i) {
        float given = upper ? v[i] : v[keep + i];
        v[i] = (upper ? v[keep + i] : v[i]) + __shfl_xor_sync(~0u, given, keep * 4);
      }
    }
    ((float*)(sums + c + lane / 4 % 4))[lane / 16] = v[0];
  }
}
