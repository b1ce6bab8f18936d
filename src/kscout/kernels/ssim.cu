// SSIM of many images against few targets: 11x11 Gaussian window, zero padded, biased covariance.
//
// Image p is compared with target `owner[p]` after `scale * image + shift`, which are given per
// target or per image. The targets' own blurred means and variances are given. Written is the sum
// of SSIM over each tile of 32 x 32 pixels.

enum { TILE = 32, HALO = 5, WIDE = TILE + 2 * HALO, TAPS = 2 * HALO + 1, RUN = 4 };

// What blurring RUN neighboring places needs: so a value leaves shared memory less often than TAPS
// times.
template <int STRIDE>
__device__ __forceinline__ void fetch(const float* from, float (&values)[RUN + TAPS - 1]) {
#pragma unroll
  for (int k = 0; k < RUN + TAPS - 1; ++k) values[k] = from[k * STRIDE];
}

__global__ void __launch_bounds__(256)
    score(const float* images, const float* scale, const float* shift, const long long* owner,
          const float* target, const float* target_mean, const float* target_variance,
          const float* c1, const float* c2, const float* window, float* sums, const int* n_images,
          int n_rows, int n_cols, int is_by_target) {
  int image = blockIdx.y;
  long long n_pixels = (long long)n_rows * n_cols, own = owner[image];
  if (image >= *n_images) return;
  __shared__ float x[WIDE][WIDE + 1], t[WIDE][WIDE + 1];
  __shared__ float4 blurred[3][WIDE][TILE / RUN];
  __shared__ float scratch[8];
  int across = (n_cols + TILE - 1) / TILE;
  int top = blockIdx.x / across * TILE, left = blockIdx.x % across * TILE;
  const float* values = images + image * n_pixels;
  const float* truth = target + own * n_pixels;
  float a = scale[is_by_target ? own : image], b = shift[is_by_target ? own : image], w[TAPS];
  for (int k = 0; k < TAPS; ++k) w[k] = window[k];
  for (int i = threadIdx.x; i < WIDE * WIDE; i += 256) {
    int row = top - HALO + i / WIDE, col = left - HALO + i % WIDE;
    bool inside = row >= 0 && row < n_rows && col >= 0 && col < n_cols;
    x[i / WIDE][i % WIDE] = inside ? fmaf(a, values[row * n_cols + col], b) : 0.f;
    t[i / WIDE][i % WIDE] = inside ? truth[row * n_cols + col] : 0.f;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < WIDE * TILE / RUN; i += 256) {
    int row = i / (TILE / RUN), run = i % (TILE / RUN);
    float v[RUN + TAPS - 1], u[RUN + TAPS - 1], m[RUN] = {}, s[RUN] = {}, p[RUN] = {};
    fetch<1>(&x[row][run * RUN], v);
    fetch<1>(&t[row][run * RUN], u);
#pragma unroll
    for (int o = 0; o < RUN; ++o)
#pragma unroll
      for (int k = 0; k < TAPS; ++k) {
        float weighted = w[k] * v[o + k];
        m[o] += weighted, s[o] = fmaf(weighted, v[o + k], s[o]);
        p[o] = fmaf(weighted, u[o + k], p[o]);
      }
    blurred[0][row][run] = make_float4(m[0], m[1], m[2], m[3]);
    blurred[1][row][run] = make_float4(s[0], s[1], s[2], s[3]);
    blurred[2][row][run] = make_float4(p[0], p[1], p[2], p[3]);
  }
  __syncthreads();
  float total = 0.f, k1 = c1[own], k2 = c2[own];
  // 256 threads: each takes RUN pixels of one column.
  int col = threadIdx.x % TILE, row = threadIdx.x / TILE * RUN;
  float down[3][RUN] = {}, v[RUN + TAPS - 1];
#pragma unroll
  for (int q = 0; q < 3; ++q) {
    fetch<TILE>((const float*)blurred[q][row] + col, v);
#pragma unroll
    for (int o = 0; o < RUN; ++o)
#pragma unroll
      for (int k = 0; k < TAPS; ++k) down[q][o] = fmaf(w[k], v[o + k], down[q][o]);
  }
#pragma unroll
  for (int o = 0; o < RUN; ++o) {
    if (top + row + o >= n_rows || left + col >= n_cols) continue;
    float m = down[0][o], s = down[1][o], p = down[2][o];
    long long at = own * n_pixels + (top + row + o) * n_cols + left + col;
    float tm = target_mean[at];
    float numerator = (2.f * m * tm + k1) * (2.f * (p - m * tm) + k2);
    total += numerator / ((m * m + tm * tm + k1) * (s - m * m + target_variance[at] + k2));
  }
  for (int d = 16; d > 0; d /= 2) total += __shfl_down_sync(~0u, total, d);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = total;
  __syncthreads();
  if (threadIdx.x == 0) {
    total = 0.f;
    for (int i = 0; i < 8; ++i) total += scratch[i];
    sums[image * gridDim.x + blockIdx.x] = total;
  }
}

// The mean SSIM of each image from its tiles' sums: one warp per image, the same order every time.
__global__ void __launch_bounds__(32)
    average(const float* sums, float* means, const int* n_images, int n_tiles, int n_pixels) {
  long long image = blockIdx.x;
  float total = 0.f;
  // Images beyond the count score zero, so that none holds what is no number.
  if (image < *n_images)
    for (int i = threadIdx.x; i < n_tiles; i += 32) total += sums[image * n_tiles + i];
  for (int d = 16; d > 0; d /= 2) total += __shfl_down_sync(~0u, total, d);
  if (threadIdx.x == 0) means[image] = total / n_pixels;
}
