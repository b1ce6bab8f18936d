// Gradients of a network of 3x3 convolutions, each followed by instance norm, ReLU and, but for the
// first, 2x2 max pooling.
//
// Layouts are those of convolution.cu: 16-bit floats, [image][row][col][channel], a layer's output
// stored before its norm. `gradient` is the loss's derivative by what the next layer reads (pooled),
// times a factor that keeps it within 16 bit. `pooled` are maxima of 2x2 values, or the values where
// there is no pooling: norm and ReLU may come after the maximum, because they grow. A layer takes four steps:
//   gradient_sums      what instance norm's derivative needs of the whole image, per channel;
//   through_norm       back through pooling, ReLU and norm: the derivative by the convolution's output;
//   weight_gradients   its correlation with what the convolution read;
//   convolve_plain     back through the convolution, with transposed weights: the layer before's gradient.
// Sums are added in a fixed order.

#include "device.cuh"

__device__ __forceinline__ void unpack8(float (&v)[8], uint4 raw) {
  unpack(raw.x, v[0], v[1]), unpack(raw.y, v[2], v[3]);
  unpack(raw.z, v[4], v[5]), unpack(raw.w, v[6], v[7]);
}

// Beyond the largest 16-bit float lies infinity, which one step of training would not survive.
__device__ __forceinline__ float bounded(float x) { return fminf(fmaxf(x, -65504.f), 65504.f); }

__device__ __forceinline__ uint4 load8(const u16* p) { return __ldg((const uint4*)p); }

// Scale and shift of instance norm per image and channel, from the sums of its tiles.
template <int C>
__global__ void __launch_bounds__(C)
    finish_norms(const float2* sums, int n_tiles, int n_pixels, float2* norms) {
  const float2* own = sums + (long long)blockIdx.x * n_tiles * C + threadIdx.x;
  float sum = 0.f, squares = 0.f;
  for (int tile = 0; tile < n_tiles; ++tile) {
    float2 s = __ldg(own + tile * C);
    sum += s.x, squares += s.y;
  }
  float mean = sum / n_pixels;
  float scale = rsqrtf(fmaxf(squares / n_pixels - mean * mean, 0.f) + 1e-5f);
  norms[blockIdx.x * C + threadIdx.x] = make_float2(scale, -mean * scale);
}

// Where a thread stands: eight channels `c` of every STEP-th position from `first` on. Positions are
// pixels, or windows of 2x2 pixels where POOLS.
template <int H, int W, int C, int POOLS>
struct Walk {
  static constexpr int ROWS = POOLS ? H / 2 : H, COLS = POOLS ? W / 2 : W, N = ROWS * COLS;
  static constexpr int VECTORS = C / 8, STEP = 256 / VECTORS;
  int c, first, last;
  __device__ __forceinline__ Walk() {
    int n_here = (N + gridDim.x - 1) / gridDim.x;
    c = threadIdx.x % VECTORS * 8;
    first = blockIdx.x * n_here + threadIdx.x / VECTORS;
    last = min((int)(blockIdx.x + 1) * n_here, N);
  }
  __device__ __forceinline__ const u16* corner(const u16* image, int p) const {
    return POOLS ? image + (p / COLS * 2 * W + p % COLS * 2) * C + c : image + p * C + c;
  }
};

// Sums over a part of each image of the gradient that passes ReLU, and of that times the normalized
// value: [image][part][channel].
template <int H, int W, int C>
__global__ void __launch_bounds__(256)
    gradient_sums(const u16* pooled, const float2* norms, const u16* gradient, float2* out) {
  __shared__ float scratch[256][17];
  Walk<H, W, C, 0> walk;
  int image = blockIdx.y;
  const u16* own = pooled + (long long)image * H * W * C;
  const u16* above = gradient + (long long)image * walk.N * C + walk.c;
  float2 norm[8];
  float sum[8] = {}, product[8] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) norm[i] = __ldg(norms + image * C + walk.c + i);
#pragma unroll 4
  for (int p = walk.first; p < walk.last; p += walk.STEP) {
    float x[8], g[8];
    unpack8(x, load8(walk.corner(own, p)));
    unpack8(g, load8(above + (long long)p * C));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float z = fmaf(x[i], norm[i].x, norm[i].y), passed = z > 0.f ? g[i] : 0.f;
      sum[i] += passed, product[i] = fmaf(passed, z, product[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    scratch[threadIdx.x][2 * i] = sum[i];
    scratch[threadIdx.x][2 * i + 1] = product[i];
  }
  __syncthreads();
  for (int c = threadIdx.x; c < C; c += 256) {
    float2 total = make_float2(0.f, 0.f);
    for (int group = 0; group < walk.STEP; ++group) {
      const float* s = scratch[group * walk.VECTORS + c / 8] + c % 8 * 2;
      total.x += s[0], total.y += s[1];
    }
    out[((long long)image * gridDim.x + blockIdx.x) * C + c] = total;
  }
}

// The derivative by a convolution's output. Of equal values in a window the first one was pooled.
template <int H, int W, int C, int POOLS>
__global__ void __launch_bounds__(256)
    through_norm(const u16* values, const float2* norms, const u16* gradient, const float2* sums,
                 int n_parts, u16* out) {
  __shared__ float4 factors[C];
  Walk<H, W, C, POOLS> walk;
  int image = blockIdx.y;
  for (int c = threadIdx.x; c < C; c += 256) {
    float2 total = make_float2(0.f, 0.f), norm = norms[image * C + c];
    for (int part = 0; part < n_parts; ++part) {
      float2 s = __ldg(sums + ((long long)image * n_parts + part) * C + c);
      total.x += s.x, total.y += s.y;
    }
    factors[c] = make_float4(norm.x, norm.y, total.x / (H * W), total.y / (H * W));
  }
  __syncthreads();
  const u16* own = values + (long long)image * H * W * C;
  u16* target = out + (long long)image * H * W * C;
  const u16* above = gradient + (long long)image * walk.N * C + walk.c;
  constexpr int PIXELS = POOLS ? 4 : 1;
  for (int p = walk.first; p < walk.last; p += walk.STEP) {
    const u16* at = walk.corner(own, p);
    float x[PIXELS][8], g[8];
#pragma unroll
    for (int k = 0; k < PIXELS; ++k) unpack8(x[k], load8(at + (k / 2 * W + k % 2) * C));
    unpack8(g, load8(above + (long long)p * C));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float4 f = factors[walk.c + i];
      float most = x[0][i];
#pragma unroll
      for (int k = 1; k < PIXELS; ++k) most = fmaxf(most, x[k][i]);
      float left = fmaf(most, f.x, f.y) > 0.f ? g[i] : 0.f;
#pragma unroll
      for (int k = 0; k < PIXELS; ++k) {
        float z = fmaf(x[k][i], f.x, f.y);
        float here = x[k][i] == most ? left : 0.f;
        left -= here;
        x[k][i] = bounded(f.x * (here - f.z - z * f.w));
      }
    }
#pragma unroll
    for (int k = 0; k < PIXELS; ++k) {
      const float* v = x[k];
      *(uint4*)(target + (at - own) + (k / 2 * W + k % 2) * C) =
          make_uint4(pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7]));
    }
  }
}

// What a convolution read: CHANNELS channels of a tile and its border, pooled by the layer before.
template <int H, int W, int C, int TH, int TW, int CHANNELS, int THREADS>
__device__ __forceinline__ void fill_input(unsigned char* tile, const u16* image, int ty, int tx,
                                           const uint2* norms) {
  constexpr int STRIDE = CHANNELS * 2 + 16, VECTORS = CHANNELS / 8;
#pragma unroll 2
  for (int i = threadIdx.x; i < (TH + 2) * (TW + 2) * VECTORS; i += THREADS) {
    int p = i / VECTORS, vector = i % VECTORS;
    int y = ty - 1 + p / (TW + 2), x = tx - 1 + p % (TW + 2);
    uint4 v = make_uint4(0, 0, 0, 0);
    if (y >= 0 && y < H && x >= 0 && x < W) {
      v = load8(image + (y * W + x) * C + vector * 8);
      const uint2* norm = norms + vector * 4;
      v.x = fma_relu2(v.x, norm[0].x, norm[0].y), v.y = fma_relu2(v.y, norm[1].x, norm[1].y);
      v.z = fma_relu2(v.z, norm[2].x, norm[2].y), v.w = fma_relu2(v.w, norm[3].x, norm[3].y);
    }
    *(uint4*)(tile + p * STRIDE + vector * 16) = v;
  }
}

// Sums over images and pixels of output derivative times input, for CO x CI channels and all taps:
// [worker][tap][COUT][CIN]. Nine warps, one per tap. A worker takes every gridDim.x-th tile.
template <int H, int W, int CIN, int COUT, int TH, int TW, int CO, int CI>
__global__ void __launch_bounds__(288, CO * CI >= 1024 ? 2 : 3)
    weight_gradients(const u16* pooled, const float2* norms, const u16* derivative, float* out,
                     int n_images) {
  constexpr int IN_STRIDE = CI * 2 + 16, OUT_STRIDE = CO * 2 + 16, VECTORS = CO / 8;
  constexpr int TILES = H / TH * (W / TW);
  static_assert(TH * TW % 16 == 0 && CO % 16 == 0 && CI % 16 == 0, "tiling");
  SHARED_MEMORY(memory);
  unsigned char* in_tile = memory;
  unsigned char* out_tile = memory + (TH + 2) * (TW + 2) * IN_STRIDE;
  uint2* norm = (uint2*)(out_tile + TH * TW * OUT_STRIDE);
  int lane = threadIdx.x % 32, tap = threadIdx.x / 32;
  int first_out = blockIdx.y * CO, first_in = blockIdx.z * CI;
  // Rows of the matrices that a lane names are pixels: see load_transposed.
  int out_pixel = lane % 8 + lane / 16 * 8, in_pixel = lane % 16;
  u32 out_base = shared_address(out_tile) + out_pixel * OUT_STRIDE + lane / 8 % 2 * 16;
  u32 in_base = shared_address(in_tile) + lane / 16 * 16;
  float acc[CO / 16][CI / 8][4] = {};
  for (int item = blockIdx.x; item < n_images * TILES; item += gridDim.x) {
    int image = item / TILES, ty = item % TILES / (W / TW) * TH, tx = item % TILES % (W / TW) * TW;
    const u16* own = derivative + (long long)image * H * W * COUT + first_out;
    for (int i = threadIdx.x; i < TH * TW * VECTORS; i += 288) {
      int p = i / VECTORS, vector = i % VECTORS, y = ty + p / TW, x = tx + p % TW;
      copy_ahead(shared_address(out_tile) + p * OUT_STRIDE + vector * 16,
                 own + (y * W + x) * COUT + vector * 8);
    }
    end_copies();
    if (threadIdx.x < CI / 2) {
      const float2* n = norms + image * CIN + first_in + threadIdx.x * 2;
      float2 a = __ldg(n), b = __ldg(n + 1);
      norm[threadIdx.x] = make_uint2(pack(a.x, b.x), pack(a.y, b.y));
    }
    __syncthreads();
    fill_input<H, W, CIN, TH, TW, CI, 288>(
        in_tile, pooled + (long long)image * H * W * CIN + first_in, ty, tx, norm);
    wait_for_copies<0>();
    __syncthreads();
#pragma unroll 1
    for (int k = 0; k < TH * TW; k += 16) {
      u32 left[CO / 16][4], right[CI / 16][4];
      int p = k + in_pixel, at = (p / TW + tap / 3) * (TW + 2) + p % TW + tap % 3;
#pragma unroll
      for (int m = 0; m < CO / 16; ++m) load_transposed(left[m], out_base + k * OUT_STRIDE + m * 32);
#pragma unroll
      for (int n = 0; n < CI / 16; ++n) load_transposed(right[n], in_base + at * IN_STRIDE + n * 32);
#pragma unroll
      for (int m = 0; m < CO / 16; ++m) {
#pragma unroll
        for (int n = 0; n < CI / 16; ++n) {
          multiply(acc[m][2 * n], left[m], right[n][0], right[n][1]);
          multiply(acc[m][2 * n + 1], left[m], right[n][2], right[n][3]);
        }
      }
    }
    __syncthreads();
  }
  float* own = out + (long long)(blockIdx.x * 9 + tap) * COUT * CIN;
#pragma unroll
  for (int m = 0; m < CO / 16; ++m) {
#pragma unroll
    for (int n = 0; n < CI / 8; ++n) {
      int row = first_out + m * 16 + lane / 4, col = first_in + n * 8 + lane % 4 * 2;
      const float* v = acc[m][n];
      *(float2*)(own + row * CIN + col) = make_float2(v[0], v[1]);
      *(float2*)(own + (row + 8) * CIN + col) = make_float2(v[2], v[3]);
    }
  }
}

// The same for the first convolution, which reads images of 32 bit: [worker][COUT][16], of which nine
// are taps. Each of eight warps takes its share of a tile's pixels.
template <int H, int W, int COUT, int TH, int TW>
__global__ void __launch_bounds__(256)
    first_weight_gradients(const float* images, const u16* derivative, float* out, int n_images) {
  constexpr int WIDTH = TW + 2, STRIDE = COUT * 2 + 16, VECTORS = COUT / 8;
  constexpr int TILES = H / TH * (W / TW), TILE_BYTES = TH * TW * STRIDE;
  static_assert(TH * TW % 128 == 0, "tiling");
  SHARED_MEMORY(memory);
  u16* pixels = (u16*)(memory + TILE_BYTES);
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  u32 base = shared_address(memory) + (lane % 8 + lane / 16 * 8) * STRIDE + lane / 8 % 2 * 16;
  int tap = lane / 4, shift = tap / 3 * WIDTH + tap % 3;
  float acc[COUT / 16][2][4] = {};
  for (int item = blockIdx.x; item < n_images * TILES; item += gridDim.x) {
    int image = item / TILES, ty = item % TILES / (W / TW) * TH, tx = item % TILES % (W / TW) * TW;
    const u16* own = derivative + (long long)image * H * W * COUT;
    for (int i = threadIdx.x; i < TH * TW * VECTORS; i += 256) {
      int p = i / VECTORS, vector = i % VECTORS;
      copy_ahead(shared_address(memory) + p * STRIDE + vector * 16,
                 own + ((ty + p / TW) * W + tx + p % TW) * COUT + vector * 8);
    }
    end_copies();
    for (int i = threadIdx.x; i < (TH + 2) * WIDTH; i += 256) {
      int y = ty - 1 + i / WIDTH, x = tx - 1 + i % WIDTH;
      bool inside = y >= 0 && y < H && x >= 0 && x < W;
      pixels[i] = inside ? to_half(__ldg(images + ((long long)image * H + y) * W + x)) : 0;
    }
    wait_for_copies<0>();
    __syncthreads();
#pragma unroll 2
    for (int k = warp * 16; k < TH * TW; k += 128) {
      u32 right[4] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // Both pixels of a pair lie in one row, because TW is even.
        int p = k + lane % 4 * 2 + half * 8;
        const u16* corner = pixels + p / TW * WIDTH + p % TW;
        right[half] = corner[shift] | (u32)corner[shift + 1] << 16;
        const u16* ninth = corner + 2 * WIDTH + 2;
        if (tap == 0) right[2 + half] = ninth[0] | (u32)ninth[1] << 16;
      }
#pragma unroll
      for (int m = 0; m < COUT / 16; ++m) {
        u32 left[4];
        load_transposed(left, base + k * STRIDE + m * 32);
        multiply(acc[m][0], left, right[0], right[1]);
        multiply(acc[m][1], left, right[2], right[3]);
      }
    }
    __syncthreads();
  }
  float* scratch = (float*)memory;
#pragma unroll
  for (int m = 0; m < COUT / 16; ++m) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      int row = m * 16 + lane / 4 + i % 4 / 2 * 8, col = i / 4 * 8 + lane % 4 * 2 + i % 2;
      scratch[(warp * COUT + row) * 16 + col] = acc[m][i / 4][i % 4];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < COUT * 16; i += 256) {
    float total = 0.f;
    for (int w = 0; w < 8; ++w) total += scratch[w * COUT * 16 + i];
    out[(long long)blockIdx.x * COUT * 16 + i] = total;
  }
}

// 3x3 convolution of CIN to COUT channels and nothing else. A block makes TH x TW pixels of COUT / NZ
// channels of one image with WM x WN warps; weights are packed as for convolution.cu.
template <int H, int W, int CIN, int COUT, int TH, int TW, int WM, int WN, int NZ>
__global__ void __launch_bounds__(WM* WN * 32, 2)
    convolve_plain(const u16* input, const uint4* weights, u16* out) {
  constexpr int THREADS = WM * WN * 32, KC = CIN < 64 ? CIN : 64, STRIDE = KC * 2 + 16;
  constexpr int MT = TH * TW / 16 / WM, NT = COUT / NZ / 8 / WN, VECTORS = KC / 8;
  static_assert(NT % 2 == 0 && MT * WM * 16 == TH * TW && NT * WN * 8 * NZ == COUT, "tiling");
  SHARED_MEMORY(memory);
  int ty = blockIdx.x / (W / TW) * TH, tx = blockIdx.x % (W / TW) * TW, image = blockIdx.y;
  const u16* own = input + (long long)image * H * W * CIN;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warp_m = warp % WM, warp_n = warp / WM;
  int first_n = blockIdx.z * (COUT / NZ / 8) + warp_n * NT;
  u32 base[MT];
#pragma unroll
  for (int m = 0; m < MT; ++m) {
    int p = (warp_m * MT + m) * 16 + lane % 16;
    base[m] = shared_address(memory) + (p / TW * (TW + 2) + p % TW) * STRIDE + lane / 16 * 16;
  }
  float acc[MT][NT][4] = {};
#pragma unroll 1
  for (int k0 = 0; k0 < CIN; k0 += KC) {
    for (int i = threadIdx.x; i < (TH + 2) * (TW + 2) * VECTORS; i += THREADS) {
      int p = i / VECTORS, vector = i % VECTORS;
      int y = ty - 1 + p / (TW + 2), x = tx - 1 + p % (TW + 2);
      if (y >= 0 && y < H && x >= 0 && x < W)
        copy_ahead(shared_address(memory) + p * STRIDE + vector * 16,
                   own + (y * W + x) * CIN + k0 + vector * 8);
      else
        *(uint4*)(memory + p * STRIDE + vector * 16) = make_uint4(0, 0, 0, 0);
    }
    end_copies();
    wait_for_copies<0>();
    __syncthreads();
#pragma unroll 1
    for (int dy = 0; dy < 3; ++dy) {
#pragma unroll
      for (int dx = 0; dx < 3; ++dx) {
        const uint4* w = weights + ((dy * 3 + dx) * (CIN / 16) + k0 / 16) * (COUT / 16) * 32 +
                         first_n / 2 * 32 + lane;
#pragma unroll
        for (int k = 0; k < KC / 16; ++k) {
          uint4 wk[NT / 2];
#pragma unroll
          for (int n = 0; n < NT / 2; ++n) wk[n] = __ldg(w + (k * (COUT / 16) + n) * 32);
#pragma unroll
          for (int m = 0; m < MT; ++m) {
            u32 pixels[4];
            load_matrices(pixels, base[m] + (dy * (TW + 2) + dx) * STRIDE + k * 32);
#pragma unroll
            for (int n = 0; n < NT / 2; ++n) {
              multiply(acc[m][2 * n], pixels, wk[n].x, wk[n].y);
              multiply(acc[m][2 * n + 1], pixels, wk[n].z, wk[n].w);
            }
          }
        }
      }
    }
    __syncthreads();
  }
  // The four results that a lane holds of two products are channels side by side.
  u16* target = out + (long long)image * H * W * COUT;
#pragma unroll
  for (int n = 0; n < NT; n += 2) {
#pragma unroll
    for (int m = 0; m < MT; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int p = (warp_m * MT + m) * 16 + lane / 4 + half * 8;
        const float *a = acc[m][n] + 2 * half, *b = acc[m][n + 1] + 2 * half;
        u16* at = target + ((ty + p / TW) * W + tx + p % TW) * COUT + (first_n + n) * 8;
        *(uint2*)(at + lane % 4 * 4) = make_uint2(pack(bounded(a[0]), bounded(a[1])),
                                                  pack(bounded(b[0]), bounded(b[1])));
      }
    }
  }
}
