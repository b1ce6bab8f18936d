// What fused convolutions read: tiles of 16 channels with their border, and norms to be finished.
//
// A tile takes values as they are, before norm and ReLU, unless they are upsampled: the norm is
// then finished where pixels are multiplied, and copies need not pass through registers.

#include "device.cuh"

enum Mode { SAME = 0, UP = 1, POOLED = 2 };  // POOLED: by whoever wrote it

constexpr int KC = 16;                     // channels of a tile: the depth of one product
constexpr int VECTORS = KC / 8;            // 16-byte vectors of a pixel in a tile
constexpr int STRIDE = KC * 2;             // bytes of a pixel in a tile
constexpr u32 OUTSIDE = 0xfc00fc00;        // minus infinity twice: norm and ReLU turn it into zero
constexpr float SHARE = 1.f / 16;          // what upsampling multiplies: a pixel is 9, 3, 3 and 1

// Where a vector lies in its row of a tile. Every four pixels change the order of their vectors, so
// that the same vector of eight pixels in a row hits different banks.
__device__ __forceinline__ int place_in_row(int col, int part) {
  return col * STRIDE + (part ^ (col / 4 & 1)) * 16;
}

// Scale and shift of an instance norm, for two channels, as pairs of 16-bit floats.
struct Norm {
  u32 scale, shift;
};

// Turn the sums of one channel into its norm. The shift is made with the scale as rounded, so that
// rounding the scale stretches deviations from the mean, by at most 1 / 2048, but not the mean.
// What is normed is multiplied with `share`.
__device__ __forceinline__ void set_norm(Norm* norms, int channel, float2 sums, float n_pixels,
                                         float share) {
  float mean = sums.x / n_pixels, scale, none;
  float variance = fmaxf(sums.y / n_pixels - mean * mean, 0.f);
  u16 rounded = to_half(fmaxf(rsqrtf(variance + 1e-5f), 1e-6f));  // above zero also as rounded
  unpack(rounded, scale, none);
  u16* own = (u16*)(norms + channel / 2) + channel % 2;
  own[0] = to_half(scale * share);
  own[2] = to_half(fminf(fmaxf(-mean * scale * share, -65504.f), 65504.f));
}

// Eight channels of one pixel after norm and ReLU.
__device__ __forceinline__ uint4 activate(uint4 v, const Norm* norm) {
  uint4 a = *(const uint4*)norm, b = *(const uint4*)(norm + 2);
  return make_uint4(fma_relu2(v.x, a.x, a.y), fma_relu2(v.y, a.z, a.w),
                    fma_relu2(v.z, b.x, b.y), fma_relu2(v.w, b.z, b.w));
}

__device__ __forceinline__ void unpack8(float (&v)[8], uint4 packed) {
  unpack(packed.x, v[0], v[1]), unpack(packed.y, v[2], v[3]);
  unpack(packed.z, v[4], v[5]), unpack(packed.w, v[6], v[7]);
}

// 3 a + b
__device__ __forceinline__ uint4 blend(uint4 a, uint4 b) {
  constexpr u32 THREE = 0x42004200;
  return make_uint4(fma2(a.x, THREE, b.x), fma2(a.y, THREE, b.y), fma2(a.z, THREE, b.z),
                    fma2(a.w, THREE, b.w));
}

__device__ __forceinline__ uint4 load8(const u16* p) { return __ldg((const uint4*)p); }

__device__ __forceinline__ uint4 max8(uint4 a, uint4 b) {
  return make_uint4(max2(a.x, b.x), max2(a.y, b.y), max2(a.z, b.z), max2(a.w, b.w));
}

__device__ __forceinline__ uint4 outside8() {
  return make_uint4(OUTSIDE, OUTSIDE, OUTSIDE, OUTSIDE);
}

// Where a thread's vectors lie in a tile and its border: in one column, every STEP rows from `row`
// on, so that addresses differ by constants. A thread has none where `row` lies below the tile.
template <int H, int W, int TH, int TW, int THREADS>
struct Column {
  static constexpr int ROW = (TW + 2) * VECTORS, ROWS = TH + 2, PITCH = (TW + 2) * STRIDE;
  static constexpr int STEP = THREADS >= ROW ? THREADS / ROW : 1;
  static constexpr int N = THREADS >= ROW ? 1 : (ROW + THREADS - 1) / THREADS;
  int row, y, x, part;
  unsigned char* to;
  __device__ __forceinline__ Column(int number, unsigned char* tile, int ty, int tx) {
    int i = number * THREADS + threadIdx.x, col = i % ROW / VECTORS;
    row = i < ROW * STEP ? i / ROW : ROWS, part = i % VECTORS;
    y = ty - 1 + row, x = tx - 1 + col;
    to = tile + row * PITCH + place_in_row(col, part);
  }
  __device__ __forceinline__ bool has(int k) const { return k + STEP <= ROWS || row + k < ROWS; }
  // Only the first and the last row of a tile with its border may lie outside the image.
  __device__ __forceinline__ bool is_inside(int k) const {
    return (k > 0 && k + STEP < ROWS) || (u32)(y + k) < H;
  }
  // Fill the column if it lies beside the image.
  __device__ __forceinline__ bool lies_beside() const {
    if ((u32)x < W) return false;
#pragma unroll
    for (int k = 0; k < ROWS; k += STEP)
      if (has(k)) *(uint4*)(to + k * PITCH) = outside8();
    return true;
  }
};

// Copy KC channels of a tile and its border, as they are, from a C-channel H x W image.
template <int H, int W, int C, int TH, int TW, int THREADS>
__device__ __forceinline__ void copy_tile(unsigned char* tile, const u16* image, int ty, int tx) {
  using Own = Column<H, W, TH, TW, THREADS>;
#pragma unroll
  for (int number = 0; number < Own::N; ++number) {
    Own own(number, tile, ty, tx);
    if (own.row >= Own::ROWS || own.lies_beside()) continue;
    const u16* from = image + (own.y * W + own.x) * C + own.part * 8;
    u32 to = shared_address(own.to);
#pragma unroll
    for (int k = 0; k < Own::ROWS; k += Own::STEP) {
      if (!own.has(k)) continue;
      if (own.is_inside(k))
        copy_ahead(to + k * Own::PITCH, from + k * W * C);
      else
        *(uint4*)(own.to + k * Own::PITCH) = outside8();
    }
  }
}

// Copy what upsampling reads: a tile of half the size with its border, the image's edge repeated.
template <int H, int W, int C, int TH, int TW, int THREADS>
__device__ __forceinline__ void copy_source(unsigned char* source, const u16* image, int ty,
                                            int tx) {
  constexpr int WIDTH = TW / 2 + 2, N = (TH / 2 + 2) * WIDTH * VECTORS;
#pragma unroll
  for (int first = 0; first < N; first += THREADS) {
    int i = first + threadIdx.x, p = i / VECTORS, part = i % VECTORS;
    if (i >= N) break;
    int y = min(max(ty / 2 - 1 + p / WIDTH, 0), H / 2 - 1);
    int x = min(max(tx / 2 - 1 + p % WIDTH, 0), W / 2 - 1);
    copy_ahead(shared_address(source + i * 16), image + (y * (W / 2) + x) * C + part * 8);
  }
}

// Norm, ReLU and bilinear upsampling from there to a tile. Four neighbors of the source make the
// four pixels between them. The norm is that of a SHARE of what it is, so that weights are whole.
template <int H, int W, int TH, int TW, int THREADS>
__device__ __forceinline__ void upsample(unsigned char* tile, const unsigned char* source,
                                         const Norm* norm, int ty, int tx) {
  constexpr int WIDTH = TW / 2 + 1, N = (TH / 2 + 1) * WIDTH * VECTORS;
  constexpr int PITCH = (TW + 2) * STRIDE;
#pragma unroll 1
  for (int i = threadIdx.x; i < N; i += THREADS) {
    int p = i / VECTORS, part = i % VECTORS, sy = p / WIDTH, sx = p % WIDTH;
    const uint4* from = (const uint4*)source + (sy * (WIDTH + 1) + sx) * VECTORS + part;
    const Norm* own = norm + part * 4;
    unsigned char* to = tile + 2 * sy * PITCH + place_in_row(2 * sx, part);
    uint4 row[2][2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      uint4 a = activate(from[j * (WIDTH + 1) * VECTORS], own);
      uint4 b = activate(from[(j * (WIDTH + 1) + 1) * VECTORS], own);
      row[j][0] = blend(a, b);
      row[j][1] = blend(b, a);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      int y = 2 * sy + j / 2, x = 2 * sx + j % 2;
      bool is_inside = (u32)(ty - 1 + y) < H && (u32)(tx - 1 + x) < W;
      uint4 v = blend(row[j / 2][j % 2], row[1 - j / 2][j % 2]);
      *(uint4*)(to + j / 2 * PITCH + j % 2 * STRIDE) = is_inside ? v : make_uint4(0, 0, 0, 0);
    }
  }
}

// Sum the tiles of each channel in a fixed order; leaves norm[] in shared memory. RAISES: A is read
// by `upsample`.
template <int CA, int CB, int THREADS, bool RAISES = false>
__device__ __forceinline__ void read_norms(Norm* norm, float2* scratch, const float2* a_sums,
                                           int a_tiles, float a_pixels, const float2* b_sums,
                                           int b_tiles, float b_pixels, int image) {
  constexpr int C = CA + CB, READERS = THREADS < 128 ? THREADS : 128;
  constexpr int GROUPS = READERS / C > 0 ? READERS / C : 1;
  for (int i = threadIdx.x; i < C * GROUPS; i += THREADS) {
    int c = i % C, group = i / C;
    bool from_a = c < CA;
    int tiles = from_a ? a_tiles : b_tiles, width = from_a ? CA : CB;
    const float2* sums = (from_a ? a_sums : b_sums) + (long long)image * tiles * width +
                         (from_a ? c : c - CA);
    float2 total = make_float2(0.f, 0.f);
    for (int t = group; t < tiles; t += GROUPS) {
      float2 s = sums[t * width];
      total.x += s.x, total.y += s.y;
    }
    scratch[i] = total;
  }
  __syncthreads();
  for (int c = threadIdx.x; c < C; c += THREADS) {
    float2 total = make_float2(0.f, 0.f);
    for (int group = 0; group < GROUPS; ++group) {
      float2 s = scratch[group * C + c];
      total.x += s.x, total.y += s.y;
    }
    set_norm(norm, c, total, c < CA ? a_pixels : b_pixels, RAISES && c < CA ? SHARE : 1.f);
  }
  __syncthreads();
}
