// What follows the last 3x3 convolution of a network, one pass over its output: `combine` ends the
// U-Net, `flatten` leads to a policy's dense layers. `convolution.cu` says how values lie.

#include "convolution_tiles.cuh"

// The three 1x1 convolutions at the end have no activation between them: one weighted sum. A thread
// makes EACH pixels, all of which it loads before it waits for norms.
template <int H, int W, int C, int EACH>
__global__ void __launch_bounds__(256)
    combine(const u16* a, const float2* a_sums, int a_tiles, const float* weights, float* out,
            const int* n_images) {
  __shared__ uint4 room[C / 4];  // norms, aligned for whole vectors
  Norm* norm = (Norm*)room;
  __shared__ float2 scratch[C > 128 ? C : 128];
  int image = blockIdx.y, first = blockIdx.x * 256 * EACH + threadIdx.x;
  if (image >= *n_images) return;
  const u16* own = a + (long long)image * H * W * C;
  uint4 raw[EACH][C / 8];
#pragma unroll
  for (int k = 0; k < EACH; ++k)
#pragma unroll
    for (int c = 0; c < C; c += 8)
      if (first + k * 256 < H * W) raw[k][c / 8] = load8(own + (first + k * 256) * C + c);
  read_norms<C, 0, 256>(norm, scratch, a_sums, a_tiles, (float)H * W, a_sums, 0, 1.f, image);
#pragma unroll
  for (int k = 0; k < EACH; ++k) {
    float total = weights[C];
#pragma unroll
    for (int c = 0; c < C; c += 8) {
      float v[8];
      unpack8(v, activate(raw[k][c / 8], norm + c / 2));
#pragma unroll
      for (int i = 0; i < 8; ++i) total = fmaf(v[i], weights[c + i], total);
    }
    int p = first + k * 256;
    if (p < H * W) out[(long long)image * H * W + p] = total;
  }
}

// Norm, ReLU and 2x2 pooling of the last features, H x W before.
template <int H, int W, int C>
__global__ void __launch_bounds__(256)
    flatten(const u16* a, const float2* a_sums, int a_tiles, u16* out, const int* n_images) {
  __shared__ uint4 room[C / 4];  // norms, aligned for whole vectors
  Norm* norm = (Norm*)room;
  __shared__ float2 scratch[C > 128 ? C : 128];
  int image = blockIdx.y;
  if (image >= *n_images) return;
  read_norms<C, 0, 256>(norm, scratch, a_sums, a_tiles, (float)H * W, a_sums, 0, 1.f, image);
  constexpr int HP = H / 2, WP = W / 2;
  const u16* own = a + (long long)image * H * W * C;
  for (int i = blockIdx.x * 256 + threadIdx.x; i < HP * WP * C / 8; i += gridDim.x * 256) {
    int p = i / (C / 8), c = i % (C / 8) * 8, y = p / WP, x = p % WP;
    const u16* from = own + (2 * y * W + 2 * x) * C + c;
    uint4 top = max8(load8(from), load8(from + C));
    uint4 bottom = max8(load8(from + W * C), load8(from + W * C + C));
    uint4 v = activate(max8(top, bottom), norm + c / 2);
    *(uint4*)(out + ((long long)image * HP * WP + p) * C + c) = v;
  }
}
