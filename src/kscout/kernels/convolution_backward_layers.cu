// Gradients of one 3x3 convolution by its weights and by what it read. Layouts: convolution_backward.cu.
//
// As many blocks run as the chip holds; each goes through a range of tiles of all images and fetches
// the next while it multiplies the present one. `sums` of a gradient are [image][part][channel]; a
// part is what one warp makes of a tile.

#include "convolution_backward_tiles.cuh"

// Sums over images and pixels of output derivative times input, for CO x CI channels and all taps:
// [worker][tap][COUT][CIN]. The derivative is made from `values`, the convolution's output,
// `factors` of its norm and `gradient` by what pooling left, and written for whoever needs it next.
// `pooled` is what the convolution read, before `norms` and ReLU; its border is minus infinity. Eight
// warps make the next tile's derivative from what they fetched a tile before, while eight multiply
// the present one, 32 x 8 channels each; they meet once a tile.
template <int H, int W, int CIN, int COUT, int TH, int TW, int CO, int CI>
__global__ void __launch_bounds__(512, 1)
    weight_gradients(const u16* values, const float4* factors, const u16* gradient,
                     const u16* pooled, const float2* norms, u16* derivative, float* out,
                     int n_images) {
  constexpr int D_STRIDE = CO * 2 + 16, X_STRIDE = CI * 2 + 16, VECTORS = CO / 8, WARPS = CO / 32;
  constexpr int TILES = H / TH * (W / TW), X_TILE = (TH + 2) * (TW + 2) * X_STRIDE;
  constexpr int D_TILE = TH * TW * D_STRIDE, N = TH * TW / 4 * VECTORS;
  static_assert(WARPS * (CI / 8) == 8, "eight warps");
  static_assert(TW <= 16 && N <= 256, "one strip; a thread has at most eight channels of a window");
  SHARED_MEMORY(memory);
  unsigned char* tiles = memory + 2 * X_TILE;  // derivatives; of all there are two, used in turn
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 8;
  int first_out = blockIdx.y * CO, first_in = blockIdx.z * CI, turn = 0;
  Range range(n_images * TILES);
  if (threadIdx.x < 256) {
    int window = threadIdx.x / VECTORS, vector = threadIdx.x % VECTORS;
    int y = window / (TW / 2), x = window % (TW / 2), c = first_out + vector * 8;
    bool has_window = threadIdx.x < N;
    Window<H, W, COUT> own;
    Factors<COUT> own_factors;
    auto fetch = [&](int item) {
      int t = item % TILES, ty = t / (W / TW) * TH, tx = t % (W / TW) * TW;
      if (!has_window || item >= range.end) return;
      own.fetch(values, gradient, item / TILES, ty / 2 + y, tx / 2 + x, c);
      own_factors.fetch(factors, item / TILES, c);
    };
    fetch(range.item);
    for (int item = range.item; item < range.end; ++item, turn ^= 1) {
      long long image = item / TILES;
      int t = item % TILES, ty = t / (W / TW) * TH, tx = t % (W / TW) * TW;
      copy_tile<H, W, CIN, TH, TW, CI / 8, 256, OUTSIDE>(
          memory + turn * X_TILE, pooled + image * H * W * CIN + first_in, ty, tx);
      end_copies();
      u32 v[4][4];
      if (has_window) own.differentiate_to(v, own_factors);
      fetch(item + 1);
      unsigned char* here = tiles + turn * D_TILE + (2 * y * TW + 2 * x) * D_STRIDE + vector * 16;
      u16* to = derivative + (image * H * W + (ty + 2 * y) * W + tx + 2 * x) * COUT + c;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (!has_window) continue;
        *(uint4*)(here + (k / 2 * TW + k % 2) * D_STRIDE) = join(v[k]);
        if (blockIdx.z == 0) *(uint4*)(to + (k / 2 * W + k % 2) * COUT) = join(v[k]);
      }
      wait_for_copies<0>();
      __syncthreads();
    }
    __syncthreads();
    return;
  }
  int own_out = warp % WARPS * 32, own_in = warp / WARPS * 8;
  u32 left = shared_address(tiles) + own_out * 2, right = shared_address(memory) + own_in * 2;
  float acc[9][2][4] = {};
  for (int item = range.item; item < range.end; ++item, turn ^= 1) {
    const float2* n = norms + item / TILES * CIN + first_in + own_in + lane / 4;
    uint2 norm = norm_pair(__ldg(n));
    __syncthreads();
    correlate<TH, TW, TW, D_STRIDE, X_STRIDE>(acc, left + turn * D_TILE, right + turn * X_TILE,
                                              norm);
  }
  __syncthreads();
  write_weights<COUT, CIN>(acc, out + (long long)blockIdx.x * 9 * COUT * CIN +
                                    (first_out + own_out) * CIN + first_in + own_in);
}

// 3x3 convolution of CIN to COUT channels: from a derivative by a convolution's output to the
// gradient by what it read, if weights are transposed; packed as for convolution.cu. A block makes
// tiles of TH x TW pixels and WN x 32 channels with WM x WN warps.
template <int H, int W, int CIN, int COUT, int TH, int TW, int WM, int WN>
__global__ void __launch_bounds__(WM* WN * 32, WM* WN > 8 ? 1 : 2)
    convolve_plain(const u16* derivative, const uint4* weights, const u16* values,
                   const float2* norms, u16* out, float2* sums, int n_images) {
  constexpr int THREADS = WM * WN * 32, KC = 16, STRIDE = KC * 2 + 16, STEPS = CIN / KC;
  constexpr int PART = WN * 32, NT = 4, MT = TH * TW / 16 / WM, TILES = H / TH * (W / TW);
  constexpr int TILE = (TH + 2) * (TW + 2) * STRIDE, TAP = PART / 16 * 32;
  constexpr int STAGE = TILE + 9 * TAP * 16;
  static_assert(MT * WM * 16 == TH * TW && WM % Place<TW, MT>::COLS == 0, "tiling");
  SHARED_MEMORY(memory);  // two stages, used in turn
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warp_m = warp % WM, warp_n = warp / WM;
  int part = blockIdx.y * PART;
  using P = Place<TW, MT>;
  P place(warp_m);
  u32 corner = shared_address(memory) + lane / 16 * 16 +
               ((place.y + lane % 16 / P::LENGTH) * (TW + 2) + place.x + lane % P::LENGTH) * STRIDE;
  auto fetch = [&](int item, int step, unsigned char* stage) {
    long long image = item / TILES;
    int t = item % TILES, ty = t / (W / TW) * TH, tx = t % (W / TW) * TW;
    copy_tile<H, W, CIN, TH, TW, KC / 8, THREADS, 0>(
        stage, derivative + image * H * W * CIN + step * KC, ty, tx);
    const uint4* from = weights + step * (COUT / 16 * 32) + part * 2;
#pragma unroll
    for (int first = 0; first < 9 * TAP; first += THREADS) {
      int i = first + threadIdx.x;
      if (i < 9 * TAP)
        copy_ahead(shared_address(stage + TILE) + i * 16,
                   from + i / TAP * STEPS * (COUT / 16 * 32) + i % TAP);
    }
  };
  Range range(n_images * TILES);
  int turn = 0;
  if (range.item < range.end) fetch(range.item, 0, memory);
  end_copies();
  for (int item = range.item; item < range.end; ++item) {
    float acc[MT][NT][4] = {};
#pragma unroll 1
    for (int step = 0; step < STEPS; ++step) {
      wait_for_copies<0>();
      __syncthreads();
      int present = turn * STAGE;
      bool ends = step + 1 == STEPS;
      turn ^= 1;
      if (!ends || item + 1 < range.end)
        fetch(item + ends, ends ? 0 : step + 1, memory + turn * STAGE);
      end_copies();
      const uint4* w = (const uint4*)(memory + present + TILE) + warp_n * NT * 16;
      multiply_tile<TW, MT, NT, TAP, STRIDE>(acc, corner + present, w);
    }
    int image = item / TILES, t = item % TILES, ty = t / (W / TW) * TH, tx = t % (W / TW) * TW;
    int channel = part + warp_n * NT * 8;
    long long first = ((long long)image * H * W + ty * W + tx) * COUT + channel;
    write_gradient<W, COUT>(acc, out + first, norms + image * COUT + channel,
                            sums + ((long long)item * WM + warp_m) * COUT + channel, place,
                            [&](int y, int x, int c) {
                              return __ldg((const uint2*)(values + first + (y * W + x) * COUT + c));
                            },
                            [](int, int) { return true; });
  }
}
