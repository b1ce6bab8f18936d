// Gradients of a network of 3x3 convolutions, each followed by instance norm, ReLU and, but for the
// first, 2x2 max pooling.
//
// Layouts are those of convolution.cu: 16-bit floats, [image][row][col][channel], a layer's output
// stored before its norm. `gradient` is the loss's derivative by what the next layer reads (pooled),
// times a factor that keeps it within 16 bit. `pooled` are maxima of 2x2 values, or the values where
// there is no pooling: norm and ReLU may come after the maximum, because they grow. The steps:
//   gradient_sums   of the last layer: what instance norm's derivative needs of the whole image, per
//                   channel; other layers find it as they make the gradient;
//   finish_sums     from these to the factors of that derivative;
//   then, in convolution_backward_layers.cu, back through pooling, ReLU and norm to the derivative by
//   the convolution's output, its correlation with what the convolution read, and back through the
//   convolution to the layer before's gradient; for the widest layer of fewest channels all of that
//   at once, in convolution_backward_thin.cu;
//   add_workers     the sum of what blocks found of a weight's gradient;
//   first_weight_gradients   for the first layer, which reads images and pools nothing.
// Sums are added in a fixed order.

#include "convolution_backward_tiles.cuh"

__device__ __forceinline__ void unpack8(float (&v)[8], uint4 raw) {
  unpack(raw.x, v[0], v[1]), unpack(raw.y, v[2], v[3]);
  unpack(raw.z, v[4], v[5]), unpack(raw.w, v[6], v[7]);
}

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

// Factors of the derivative by a convolution's output, from the sums of a gradient's parts: scale and
// shift of the norm, slope and height of the line in the value that is added to scale times gradient.
template <int C>
__global__ void __launch_bounds__(256)
    finish_sums(const float2* sums, int n_parts, int n_pixels, const float2* norms, float4* factors) {
  constexpr int GROUPS = C < 256 ? 256 / C : 1;
  __shared__ float2 scratch[GROUPS * C];
  long long image = blockIdx.x;
  for (int i = threadIdx.x; i < GROUPS * C; i += 256) {
    const float2* own = sums + image * n_parts * C + i % C;
    float2 total = make_float2(0.f, 0.f);
#pragma unroll 4
    for (int part = i / C; part < n_parts; part += GROUPS) {
      float2 s = __ldg(own + part * C);
      total.x += s.x, total.y += s.y;
    }
    scratch[i] = total;
  }
  __syncthreads();
  for (int c = threadIdx.x; c < C; c += 256) {
    float2 total = make_float2(0.f, 0.f), norm = norms[image * C + c];
    for (int group = 0; group < GROUPS; ++group)
      total.x += scratch[group * C + c].x, total.y += scratch[group * C + c].y;
    float mean = total.x / n_pixels, product = total.y / n_pixels;
    factors[image * C + c] = make_float4(norm.x, norm.y, -norm.x * norm.x * product,
                                         -norm.x * (mean + norm.y * product));
  }
}

// Where a thread stands: eight channels `c` of every STEP-th of N positions from `first` on.
template <int N, int C>
struct Walk {
  static constexpr int VECTORS = C / 8, STEP = 256 / VECTORS;
  int c, first, last;
  __device__ __forceinline__ Walk() {
    int n_here = (N + gridDim.x - 1) / gridDim.x;
    c = threadIdx.x % VECTORS * 8;
    first = blockIdx.x * n_here + threadIdx.x / VECTORS;
    last = min((int)(blockIdx.x + 1) * n_here, N);
  }
};

// Sums over a part of each image of the gradient that passes ReLU, and of that times the normalized
// value: [image][part][channel].
template <int H, int W, int C>
__global__ void __launch_bounds__(256)
    gradient_sums(const u16* pooled, const float2* norms, const u16* gradient, float2* out) {
  __shared__ float scratch[256][17];
  Walk<H * W, C> walk;
  int image = blockIdx.y;
  const u16* own = pooled + (long long)image * H * W * C + walk.c;
  const u16* above = gradient + (long long)image * H * W * C + walk.c;
  float2 norm[8];
  float sum[8] = {}, product[8] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) norm[i] = __ldg(norms + image * C + walk.c + i);
#pragma unroll 4
  for (int p = walk.first; p < walk.last; p += walk.STEP) {
    float x[8], g[8];
    unpack8(x, load8(own + p * C));
    unpack8(g, load8(above + p * C));
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

// Add what workers found, [worker][tap][COUT][CIN], to [COUT][CIN][tap]. Eight warps have a share of
// the workers each.
template <int COUT, int CIN>
__global__ void __launch_bounds__(256)
    add_workers(const float* found, int n_workers, float* out) {
  constexpr int N = COUT * CIN;
  static_assert(N % 128 == 0, "a block adds 128 weights of one tap");
  __shared__ float4 scratch[8][32];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, i = blockIdx.x * 128 + lane * 4;
  float4 total = make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll 4
  for (int worker = warp; worker < n_workers; worker += 8) {
    float4 v = __ldg((const float4*)(found + (long long)worker * 9 * N + i));
    total.x += v.x, total.y += v.y, total.z += v.z, total.w += v.w;
  }
  scratch[warp][lane] = total;
  __syncthreads();
  if (threadIdx.x >= 128) return;
  float sum = 0.f;
  for (int w = 0; w < 8; ++w) sum += ((const float*)scratch[w])[threadIdx.x];
  int own = blockIdx.x * 128 + threadIdx.x;
  out[own % N * 9 + own / N] = sum;
}

// The gradient by the first convolution's weights: [worker][COUT][16], of which nine are taps. It reads
// images of 32 bit, and its derivative is made on the way in. Each of eight warps takes its share of a
// tile's pixels. What the next tile needs is loaded before the present one is multiplied.
template <int H, int W, int COUT, int TH, int TW>
__global__ void __launch_bounds__(256, COUT <= 32 ? 4 : 1)
    first_weight_gradients(const float* images, const u16* values, const float4* factors,
                           const u16* gradient, float* out, int n_images) {
  constexpr int WIDTH = TW + 2, STRIDE = COUT * 2 + 16, VECTORS = COUT / 8, N = (TH + 2) * WIDTH;
  constexpr int TILES = H / TH * (W / TW), TILE_BYTES = TH * TW * STRIDE;
  constexpr int EACH = (TH * TW * VECTORS + 255) / 256, PIXELS = (N + 255) / 256;
  static_assert(TH * TW % 16 == 0, "tiling");
  SHARED_MEMORY(memory);
  __shared__ float4 factor[COUT];
  u16* pixels = (u16*)(memory + TILE_BYTES);
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  u32 base = shared_address(memory) + (lane % 8 + lane / 16 * 8) * STRIDE + lane / 8 % 2 * 16;
  int tap = lane / 4, shift = tap / 3 * WIDTH + tap % 3;
  int item = (long long)n_images * TILES * blockIdx.x / gridDim.x, known = -1;
  int end = (long long)n_images * TILES * (blockIdx.x + 1) / gridDim.x;
  uint4 x[EACH], g[EACH];
  float seen[PIXELS];
  auto fetch = [&](int item) {
    long long image = item / TILES;
    int t = item % TILES, ty = t / (W / TW) * TH, tx = t % (W / TW) * TW;
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
      int i = k * 256 + threadIdx.x, p = i / VECTORS;
      long long at = (image * H * W + (ty + p / TW) * W + tx + p % TW) * COUT + i % VECTORS * 8;
      if (p < TH * TW) x[k] = load8(values + at), g[k] = load8(gradient + at);
    }
#pragma unroll
    for (int k = 0; k < PIXELS; ++k) {
      int i = k * 256 + threadIdx.x, y = ty - 1 + i / WIDTH, x = tx - 1 + i % WIDTH;
      bool is_inside = i < N && (u32)y < H && (u32)x < W;
      seen[k] = is_inside ? __ldg(images + image * H * W + y * W + x) : 0.f;
    }
  };
  if (item < end) fetch(item);
  float acc[COUT / 16][2][4] = {};
  for (; item < end; ++item) {
    if (item / TILES != known) {
      known = item / TILES;
      read_factors<COUT, 256>(factor, factors + known * COUT);
      __syncthreads();
    }
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
      int i = k * 256 + threadIdx.x, p = i / VECTORS, vector = i % VECTORS;
      if (p >= TH * TW) continue;
      u32 v[1][4], own[4];
      split(v[0], x[k]), split(own, g[k]);
      differentiate<1, VECTORS>(v, own, factor + vector);
      *(uint4*)(memory + p * STRIDE + vector * 16) = join(v[0]);
    }
#pragma unroll
    for (int k = 0; k < PIXELS; ++k)
      if (k * 256 + threadIdx.x < N) pixels[k * 256 + threadIdx.x] = to_half(seen[k]);
    __syncthreads();
    if (item + 1 < end) fetch(item + 1);
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
