// Networks of 3x3 convolutions for CUDA: each layer reads its input and writes its output once.
//
// Activations are 16-bit floats, [image][row][col][channel], and hold what a convolution gave
// before instance norm. Beside them lie sums and sums of squares per tile and channel. Whoever
// reads such a tensor finishes the norm on the way in: scale, shift, ReLU, and where asked 2x2
// pooling or bilinear upsampling. So normalization, activation, pooling, upsampling and
// concatenation cost no pass over memory. Convolution biases before an instance norm cancel and are
// left out.
//
// As many blocks run as the chip holds; each goes through a range of tiles, 16 channels at a time,
// and fetches some of these steps ahead of the one it multiplies. Images beyond the count on the
// device cost nothing. Sums are added in a fixed order that does not depend on the number of
// blocks: the same input gives the same bits. No headers are needed.

#include "convolution_tiles.cuh"

// Where the 16 pixels of a product lie in a tile: in one row, or in several where rows are short.
// A warp's products lie one below the other.
template <int TW, int MT, int WM>
struct Place {
  static constexpr int LENGTH = TW < 16 ? TW : 16, ROWS = 16 / LENGTH, COLS = TW / LENGTH;
  static_assert(WM % COLS == 0, "warps share columns evenly");
  int y, x;  // of the warp's first pixel
  __device__ __forceinline__ Place(int warp_m)
      : y(warp_m / COLS * MT * ROWS), x(warp_m % COLS * LENGTH) {}
};

// Write four channels; as one number, because the compiler splits a vector of two in two writes.
__device__ __forceinline__ void write4(u16* out, const u32 (&v)[2]) {
  *(unsigned long long*)out = v[0] | (unsigned long long)v[1] << 32;
}

// Write the 2x2 maxima of what a lane and its neighbor hold. `out` belongs to the lane's first
// pixel of the pooled image, which is W / 2 wide, and to its channels.
template <int W, int COUT, typename P, int MT>
__device__ __forceinline__ void write_pooled(const u32 (&v)[MT][2][2], u16* out) {
  constexpr bool IS_LONG = P::LENGTH == 16;  // pixels below lie in the next product
  int q = threadIdx.x % 32 / 4;
#pragma unroll
  for (int m = 0; m < MT; m += IS_LONG ? 2 : 1) {
#pragma unroll
    for (int half = 0; half < (IS_LONG ? 2 : 1); ++half) {
      u32 r[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        r[i] = max2(v[m][half][i], IS_LONG ? v[(m + 1) % MT][half][i] : v[m][1][i]);
        r[i] = max2(r[i], __shfl_xor_sync(~0u, r[i], 4));
      }
      if (q % 2 == 0) write4(out + (m * P::ROWS / 2 * (W / 2) + half * 4) * COUT, r);
    }
  }
}

// Write a warp's part of the output and its sums. Weights are ordered so that the columns of two
// neighboring products which a lane holds are four channels side by side: lanes write whole
// sectors of memory. `out`, `pooled` and `sums` belong to the tile's first pixel and the warp's
// channels. POOLS: write the pooled output too. The norm's scale is positive, so the maximum may be
// taken before it, and whoever pools reads a quarter.
template <int W, int COUT, int POOLS, int TW, int MT, int NT, int WM>
__device__ __forceinline__ void write_tile(float (&acc)[MT][NT][4], u16* out, u16* pooled,
                                           float2* sums, Place<TW, MT, WM> place) {
  using P = Place<TW, MT, WM>;
  int lane = threadIdx.x % 32, q = lane / 4;
  out += ((place.y + q / P::LENGTH) * W + place.x + q % P::LENGTH) * COUT + lane % 4 * 4;
  pooled += (place.y / 2 * (W / 2) + (place.x + q) / 2) * COUT + lane % 4 * 4;
#pragma unroll
  for (int n = 0; n < NT; n += 2) {
    float v[8] = {};  // sums, then sums of squares
    u32 packed[MT][2][2];
#pragma unroll
    for (int m = 0; m < MT; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        constexpr int EIGHT = P::LENGTH == 16 ? 8 : 8 / P::LENGTH * W;  // to pixels 8 and on
        float r[4] = {acc[m][n][2 * half], acc[m][n][2 * half + 1], acc[m][n + 1][2 * half],
                      acc[m][n + 1][2 * half + 1]};
        packed[m][half][0] = pack(r[0], r[1]), packed[m][half][1] = pack(r[2], r[3]);
        write4(out + (m * P::ROWS * W + half * EIGHT) * COUT + n * 8, packed[m][half]);
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] += r[i], v[4 + i] = fmaf(r[i], r[i], v[4 + i]);
      }
    }
    if (POOLS) write_pooled<W, COUT, P>(packed, pooled + n * 8);
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
    int channel = n * 8 + lane % 4 * 4 + lane / 4 % 4;
    ((float*)(sums + channel))[lane / 16] = v[0];
  }
}

// Add the sums of the warps of a tile, in a fixed order, after they have met.
template <int WM, int CHANNELS, int THREADS>
__device__ __forceinline__ void write_sums(float2* out, const float2* sums) {
#pragma unroll
  for (int first = 0; first < CHANNELS; first += THREADS) {
    int c = first + threadIdx.x;
    if (c >= CHANNELS) break;
    float2 total = sums[c];
#pragma unroll
    for (int w = 1; w < WM; ++w) {
      float2 s = sums[w * CHANNELS + c];
      total.x += s.x, total.y += s.y;
    }
    out[c] = total;
  }
}

// Multiply KC channels of a tile. Pixels are read once for the three rows of taps that use them.
// `tile` and `corners` give the lane's addresses for each column of taps; weights of a tap are TAP
// vectors further than those of the one before.
template <int TW, int MT, int NT, int WM, int TAP, bool ACTIVATES>
__device__ __forceinline__ void multiply_tile(float (&acc)[MT][NT][4], u32 tile,
                                              const u32 (&corners)[3], const Norm* norm,
                                              const uint4* weights) {
  constexpr int ROWS = Place<TW, MT, WM>::ROWS;
  int lane = threadIdx.x % 32;
  Norm low = norm[lane % 4], high = norm[4 + lane % 4];
#pragma unroll
  for (int dx = 0; dx < 3; ++dx) {
    uint4 w[3][NT / 2];
#pragma unroll
    for (int dy = 0; dy < 3; ++dy)
#pragma unroll
      for (int n = 0; n < NT / 2; ++n) w[dy][n] = weights[(dy * 3 + dx) * TAP + n * 32 + lane];
#pragma unroll
    for (int y = 0; y < (MT - 1) * ROWS + 3; ++y) {
      if (y % ROWS > 2) continue;  // no product of the warp begins or ends here
      u32 pixels[4];
      load_matrices(pixels, tile + corners[dx] + y * (TW + 2) * STRIDE);
      if (ACTIVATES) {
        pixels[0] = fma_relu2(pixels[0], low.scale, low.shift);
        pixels[1] = fma_relu2(pixels[1], low.scale, low.shift);
        pixels[2] = fma_relu2(pixels[2], high.scale, high.shift);
        pixels[3] = fma_relu2(pixels[3], high.scale, high.shift);
      }
#pragma unroll
      for (int dy = 0; dy < 3; ++dy) {
        int m = (y - dy) / ROWS;
        if (y < dy || (y - dy) % ROWS || m >= MT) continue;
#pragma unroll
        for (int n = 0; n < NT / 2; ++n) {
          multiply(acc[m][2 * n], pixels, w[dy][n].x, w[dy][n].y);
          multiply(acc[m][2 * n + 1], pixels, w[dy][n].z, w[dy][n].w);
        }
      }
    }
  }
}

// The tiles of a block: as many as others have, or one more.
struct Range {
  int first, end;
  __device__ __forceinline__ Range(int n) {
    int each = n / (int)gridDim.x, more = n % (int)gridDim.x, block = blockIdx.x;
    first = block * each + min(block, more), end = first + each + (block < more);
  }
};

// 3x3 convolution of [A | B] to COUT channels. A comes from a tensor of MODE's size, B (a skip
// connection, CB channels, none where 0) from one of the output's size. Blocks (x, y) share the
// tiles of TH x TW pixels of all images and NZ parts of the channels; WM x WN warps make one.
// STAGES: steps of KC channels in shared memory, all but one under way. KEEPS: weights stay there
// instead of coming with each step. BLOCKS: how many a multiprocessor should hold. POOLS: the
// output is written 2x2 pooled, too.
template <int H, int W, int CA, int MODE, int CB, int COUT, int TH, int TW, int WM, int WN, int NZ,
          int STAGES, int KEEPS, int BLOCKS, int POOLS>
__global__ void __launch_bounds__(WM* WN * 32, BLOCKS)
    convolve(const u16* a, const float2* a_sums, int a_tiles, const u16* b, const float2* b_sums,
             int b_tiles, const uint4* weights, u16* out, u16* pooled, float2* out_sums,
             const int* n_images, int most_images) {
  constexpr int THREADS = WM * WN * 32, CIN = CA + CB, PART = COUT / NZ, STEPS = CIN / KC;
  constexpr int MT = TH * TW / 16 / WM, NT = PART / 8 / WN, TILES = (H / TH) * (W / TW);
  static_assert(NT % 2 == 0 && MT * WM * 16 == TH * TW && NT * WN * 8 * NZ == COUT, "tiling");
  static_assert(CA % KC == 0 && CB % KC == 0, "a step's channels come from one tensor");
  static_assert(!POOLS || (TW >= 16 && MT % 2 == 0) || TW == 8, "a warp holds what it pools");
  constexpr int TILE = (TH + 2) * (TW + 2) * STRIDE;
  constexpr int TAP = PART / 16 * 32, WEIGHTS = 9 * TAP;  // vectors of a tap's weights, of a step's
  static_assert(THREADS % TAP == 0, "threads copy columns of weights");
  constexpr int STAGE = TILE + (KEEPS ? 0 : WEIGHTS * 16);
  constexpr int SOURCE = MODE == UP ? (TH / 2 + 2) * (TW / 2 + 2) * KC * 2 : 0;
  constexpr int TURNS = STEPS > 1 ? 1 : 2;  // sums are added in the first step of the next tile
  constexpr float OWN = (float)H * W;
  constexpr float A_PIXELS = MODE == SAME ? OWN : MODE == UP ? OWN / 4 : OWN * 4;
  constexpr int A_SIZE = MODE == POOLED ? H * W * CA : (int)A_PIXELS * CA;
  SHARED_MEMORY(memory);  // stages, used in turn
  unsigned char* sources = memory + STAGES * STAGE;  // of tiles to be upsampled
  uint4* kept = (uint4*)(sources + (STAGES - 1) * SOURCE);
  Norm* norm = (Norm*)(kept + (KEEPS ? STEPS * WEIGHTS : 0));
  float2* sums = (float2*)(norm + CIN / 2);
  float2* scratch = sums + TURNS * WM * PART;

  Range own(max(0, min(*n_images, most_images)) * TILES);
  if (own.first == own.end) return;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warp_m = warp % WM, warp_n = warp / WM;
  int part = blockIdx.y * PART;
  Place<TW, MT, WM> place(warp_m);
  using P = Place<TW, MT, WM>;
  u32 corners[3];
#pragma unroll
  for (int dx = 0; dx < 3; ++dx)
    corners[dx] = (place.y + lane % 16 / P::LENGTH) * (TW + 2) * STRIDE +
                  place_in_row(place.x + lane % P::LENGTH + dx, lane / 16);

  struct { int item, step, turn, source; } ahead = {own.first, 0, 0, 0};  // what is fetched next
  auto fetch = [&] {
    if (ahead.item < own.end) {
      unsigned char* stage = memory + ahead.turn * STAGE;
      long long image = ahead.item / TILES;
      int t = ahead.item % TILES, ty = t / (W / TW) * TH, tx = t % (W / TW) * TW;
      int c = ahead.step * KC;
      const u16* from = a + image * A_SIZE + c;
      if (CB && c >= CA)
        copy_tile<H, W, CB ? CB : KC, TH, TW, THREADS>(stage, b + image * H * W * CB + c - CA, ty,
                                                       tx);
      else if (MODE == SAME || MODE == POOLED)
        copy_tile<H, W, CA, TH, TW, THREADS>(stage, from, ty, tx);
      else
        copy_source<H, W, CA, TH, TW, THREADS>(sources + ahead.source * SOURCE, from, ty, tx);
      if (!KEEPS || ahead.item == own.first) {
        uint4* to = (KEEPS ? kept + ahead.step * WEIGHTS : (uint4*)(stage + TILE)) + threadIdx.x;
        int tap = threadIdx.x / TAP;
        const uint4* own_weights =
            weights + (tap * STEPS + ahead.step) * (COUT * 2) + part * 2 + threadIdx.x % TAP;
#pragma unroll
        for (int i = 0; i < 9; i += THREADS / TAP)
          if (tap + i < 9)
            copy_ahead(shared_address(to + i * TAP), own_weights + i * STEPS * COUT * 2);
      }
      ahead.turn = ahead.turn + 1 == STAGES ? 0 : ahead.turn + 1;
      ahead.source = ahead.source + 1 == STAGES - 1 ? 0 : ahead.source + 1;
      if (++ahead.step == STEPS) ahead.step = 0, ++ahead.item;
    }
    end_copies();  // of nothing at the end, so that the present step's are always as many ago
  };
#pragma unroll 1
  for (int i = 0; i < STAGES - 1; ++i) fetch();

  int turn = 0, source = 0, normed = -1;
  for (int item = own.first; item < own.end; ++item) {
    int image = item / TILES, t = item % TILES, ty = t / (W / TW) * TH, tx = t % (W / TW) * TW;
    if (image != normed)
      read_norms<CA, CB, THREADS, MODE == UP>(norm, scratch, a_sums, a_tiles, A_PIXELS, b_sums,
                                              b_tiles, OWN, image);
    normed = image;
    float2* own_sums = sums + item % TURNS * WM * PART;
    float acc[MT][NT][4] = {};
#pragma unroll 1
    for (int step = 0; step < STEPS; ++step) {
      bool upsamples = MODE == UP && step * KC < CA;
      wait_for_copies<STAGES - 2>();
      __syncthreads();
      if (step == 0 && item > own.first)
        write_sums<WM, PART, THREADS>(out_sums + (item - 1ll) * COUT + part,
                                      sums + (item - 1) % TURNS * WM * PART);
      unsigned char* stage = memory + turn * STAGE;
      const Norm* own_norm = norm + step * KC / 2;
      if (upsamples) {
        upsample<H, W, TH, TW, THREADS>(stage, sources + source * SOURCE, own_norm, ty, tx);
        __syncthreads();
      }
      fetch();
      const uint4* w = KEEPS ? kept + step * WEIGHTS : (const uint4*)(stage + TILE);
      w += warp_n * NT * 16;
      u32 tile = shared_address(stage);
      if (upsamples)
        multiply_tile<TW, MT, NT, WM, TAP, false>(acc, tile, corners, own_norm, w);
      else
        multiply_tile<TW, MT, NT, WM, TAP, true>(acc, tile, corners, own_norm, w);
      source = source + 1 == STAGES - 1 ? 0 : source + 1;
      turn = turn + 1 == STAGES ? 0 : turn + 1;
    }
    int channel = part + warp_n * NT * 8;
    u16* to = out + ((long long)image * H * W + ty * W + tx) * COUT + channel;
    u16* beside = pooled + ((long long)image * H * W + ty * W + 2 * tx) / 4 * COUT + channel;
    write_tile<W, COUT, POOLS>(acc, to, beside, own_sums + warp_m * PART + warp_n * NT * 8, place);
  }
  __syncthreads();
  write_sums<WM, PART, THREADS>(out_sums + (own.end - 1ll) * COUT + part,
                                sums + (own.end - 1) % TURNS * WM * PART);
}

// The first 3x3 convolution, from images of 32 bit that it normalizes on the way in,
// (value - mean) / (std + 1e-11), and clamps to six deviations where CLAMPS. Nine taps are one
// product's depth.
template <int H, int W, int COUT, int TH, int TW, int WM, int CLAMPS>
__global__ void __launch_bounds__(WM * 32, (COUT > 16 ? 16 : 32) / WM)
    convolve_first(const float* images, const float* means, const float* stds,
                   const uint4* weights, u16* out, float2* out_sums, const int* n_images,
                   int most_images) {
  constexpr int THREADS = WM * 32, MT = TH * TW / 16 / WM, NT = COUT / 8, WIDTH = TW + 2;
  constexpr int N = (TH + 2) * WIDTH, EACH = (N + THREADS - 1) / THREADS;
  constexpr int TILES = (H / TH) * (W / TW);
  using P = Place<TW, MT, WM>;
  __shared__ u16 tile[N];
  __shared__ float2 sums[WM * COUT];
  Range own(max(0, min(*n_images, most_images)) * TILES);
  if (own.first == own.end) return;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, tap = lane % 4 * 2;
  int tap0 = tap / 3 * WIDTH + tap % 3, tap1 = (tap + 1) / 3 * WIDTH + (tap + 1) % 3;
  P place(warp);
  float next[EACH], mean, std;  // pixels of the tile to come, and what normalizes them
  auto fetch = [&](int item) {
    int image = item / TILES, t = item % TILES, ty = t / (W / TW) * TH, tx = t % (W / TW) * TW;
    const float* from = images + (long long)image * H * W;
    mean = __ldg(means + image), std = __ldg(stds + image);
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
      int i = k * THREADS + threadIdx.x, y = ty - 1 + i / WIDTH, x = tx - 1 + i % WIDTH;
      if (i < N && (u32)y < H && (u32)x < W) next[k] = __ldg(from + y * W + x);
    }
  };
  fetch(own.first);
  uint4 w[NT / 2];
#pragma unroll
  for (int n = 0; n < NT / 2; ++n) w[n] = __ldg(weights + n * 32 + lane);
  for (int item = own.first; item < own.end; ++item) {
    int image = item / TILES, t = item % TILES, ty = t / (W / TW) * TH, tx = t % (W / TW) * TW;
    float inverse_std = 1.f / (std + 1e-11f);
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
      int i = k * THREADS + threadIdx.x, y = ty - 1 + i / WIDTH, x = tx - 1 + i % WIDTH;
      float v = (next[k] - mean) * inverse_std;
      if (CLAMPS) v = fminf(fmaxf(v, -6.f), 6.f);
      if (i < N) tile[i] = (u32)y < H && (u32)x < W ? to_half(v) : 0;
    }
    __syncthreads();
    if (item + 1 < own.end) fetch(item + 1);
    float acc[MT][NT][4] = {};
#pragma unroll
    for (int m = 0; m < MT; ++m) {
      u32 pixels[4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int q = lane / 4 + half * 8, y = place.y + m * P::ROWS + q / P::LENGTH;
        const u16* corner = tile + y * WIDTH + place.x + q % P::LENGTH;
        pixels[half] = corner[tap0] | (u32)corner[tap1] << 16;
        pixels[2 + half] = tap == 0 ? corner[2 * WIDTH + 2] : 0;
      }
#pragma unroll
      for (int n = 0; n < NT / 2; ++n) {
        multiply(acc[m][2 * n], pixels, w[n].x, w[n].y);
        multiply(acc[m][2 * n + 1], pixels, w[n].z, w[n].w);
      }
    }
    u16* to = out + ((long long)image * H * W + ty * W + tx) * COUT;
    write_tile<W, COUT, 0>(acc, to, to, sums + warp * COUT, place);
    __syncthreads();
    write_sums<WM, COUT, THREADS>(out_sums + (long long)item * COUT, sums);
  }
}
