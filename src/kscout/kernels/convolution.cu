// Networks of 3x3 convolutions for CUDA: each layer reads its input once and writes its output once.
//
// Activations are 16-bit floats, [image][row][col][channel], and hold what a convolution gave
// before instance norm. Beside them lie sums and sums of squares per tile and channel. Whoever reads
// such a tensor finishes the norm on the way in: scale, shift, ReLU, and where asked 2x2 pooling
// or bilinear upsampling. So normalization, activation, pooling, upsampling and concatenation cost
// no pass over memory. Convolution biases before an instance norm cancel and are left out.
//
// Sums are added in a fixed order: the same input gives the same bits. No headers are needed.

#include "device.cuh"

enum Mode { SAME = 0, POOL = 1, UP = 2 };

// Scale and shift of an instance norm, for two channels, as pairs of 16-bit floats.
struct Norm {
  u32 scale, shift;
};

// Turn the sums of one channel into its norm. The shift is made with the scale as rounded, so that
// rounding the scale stretches deviations from the mean, by at most 1 / 2048, but not the mean.
__device__ __forceinline__ void set_norm(Norm* norms, int channel, float2 sums, float n_pixels) {
  float mean = sums.x / n_pixels, scale, none;
  u16 rounded = to_half(rsqrtf(fmaxf(sums.y / n_pixels - mean * mean, 0.f) + 1e-5f));
  unpack(rounded, scale, none);
  u16* own = (u16*)(norms + channel / 2) + channel % 2;
  own[0] = rounded;
  own[2] = to_half(fminf(fmaxf(-mean * scale, -65504.f), 65504.f));
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

// wa a + wb b
__device__ __forceinline__ uint4 blend(uint4 a, u32 wa, uint4 b, u32 wb) {
  return make_uint4(fma2(b.x, wb, mul2(a.x, wa)), fma2(b.y, wb, mul2(a.y, wa)),
                    fma2(b.z, wb, mul2(a.z, wa)), fma2(b.w, wb, mul2(a.w, wa)));
}

// Eight channels at (y, x) of an H x W image, from a tensor of that size (SAME), of twice the size
// (POOL) or of half the size (UP). `fetch` only loads, so that many loads can be under way; `finish`
// does the arithmetic.
template <int MODE>
struct Raw {
  uint4 v[MODE == SAME ? 1 : 4];
};

__device__ __forceinline__ uint4 load8(const u16* p) { return __ldg((const uint4*)p); }

template <int H, int W, int C, int MODE>
__device__ __forceinline__ void fetch(Raw<MODE>& raw, const u16* image, int y, int x, int c) {
  if (MODE == SAME) {
    raw.v[0] = load8(image + (y * W + x) * C + c);
  } else if (MODE == POOL) {
    const u16* p = image + (2 * y * 2 * W + 2 * x) * C + c;
    raw.v[0] = load8(p), raw.v[1] = load8(p + C);
    raw.v[2] = load8(p + 2 * W * C), raw.v[3] = load8(p + 2 * W * C + C);
  } else {
    constexpr int HS = H / 2, WS = W / 2;
    int y0 = (y - 1) >> 1, x0 = (x - 1) >> 1;
    int y1 = min(y0 + 1, HS - 1), x1 = min(x0 + 1, WS - 1);
    y0 = max(y0, 0), x0 = max(x0, 0);
    raw.v[0] = load8(image + (y0 * WS + x0) * C + c);
    raw.v[1] = load8(image + (y0 * WS + x1) * C + c);
    raw.v[2] = load8(image + (y1 * WS + x0) * C + c);
    raw.v[3] = load8(image + (y1 * WS + x1) * C + c);
  }
}

template <int MODE>
__device__ __forceinline__ uint4 finish(const Raw<MODE>& raw, int y, int x, const Norm* norm) {
  if (MODE == SAME) return activate(raw.v[0], norm);
  if (MODE == POOL) {
    // The norm's scale is positive, so the maximum may be taken before it.
    uint4 r = raw.v[0], s = raw.v[1], t = raw.v[2], u = raw.v[3];
    r.x = max2(max2(r.x, s.x), max2(t.x, u.x));
    r.y = max2(max2(r.y, s.y), max2(t.y, u.y));
    r.z = max2(max2(r.z, s.z), max2(t.z, u.z));
    r.w = max2(max2(r.w, s.w), max2(t.w, u.w));
    return activate(r, norm);
  }
  constexpr u32 QUARTER = 0x34003400, REST = 0x3a003a00;  // 1 / 4 and 3 / 4, twice
  u32 wy = (y & 1) ? QUARTER : REST, wx = (x & 1) ? QUARTER : REST;
  u32 vy = (y & 1) ? REST : QUARTER, vx = (x & 1) ? REST : QUARTER;
  uint4 top = blend(activate(raw.v[0], norm), vx, activate(raw.v[1], norm), wx);
  uint4 bottom = blend(activate(raw.v[2], norm), vx, activate(raw.v[3], norm), wx);
  return blend(top, vy, bottom, wy);
}

// Fill a tile and its border with KC channels from `c0` on, AHEAD loads of a thread at a time. Before
// the first arithmetic, `norms` is called: it may wait for other loads.
template <int H, int W, int C, int MODE, int TH, int TW, int KC, int THREADS, int AHEAD, class F>
__device__ __forceinline__ void fill_tile(unsigned char* memory, const u16* image, int ty, int tx,
                                          int c0, const Norm* norm, F norms) {
  constexpr int STRIDE = KC * 2 + 16, VECTORS = KC / 8, N = (TH + 2) * (TW + 2) * VECTORS;
  constexpr int ROUNDS = (N + THREADS * AHEAD - 1) / (THREADS * AHEAD);
#pragma unroll 1
  for (int round = 0; round < ROUNDS; ++round) {
    Raw<MODE> raw[AHEAD];
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      int i = min((round * AHEAD + k) * THREADS + (int)threadIdx.x, N - 1), p = i / VECTORS;
      int y = ty - 1 + p / (TW + 2), x = tx - 1 + p % (TW + 2);
      y = min(max(y, 0), H - 1), x = min(max(x, 0), W - 1);
      fetch<H, W, C, MODE>(raw[k], image, y, x, c0 + i % VECTORS * 8);
    }
    if (round == 0) norms();
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
      int i = (round * AHEAD + k) * THREADS + threadIdx.x, p = i / VECTORS, c = i % VECTORS * 8;
      if (i >= N) break;
      int y = ty - 1 + p / (TW + 2), x = tx - 1 + p % (TW + 2);
      uint4 v = make_uint4(0, 0, 0, 0);
      if (y >= 0 && y < H && x >= 0 && x < W) v = finish<MODE>(raw[k], y, x, norm + c / 2);
      *(uint4*)(memory + p * STRIDE + c * 2) = v;
    }
  }
}

// Sum the tiles of each channel with all threads, in a fixed order; leaves norm[] in shared memory.
template <int CA, int CB, int THREADS>
__device__ __forceinline__ void read_norms(Norm* norm, float2* scratch, const float2* a_sums,
                                           int a_tiles, float a_pixels, const float2* b_sums,
                                           int b_tiles, float b_pixels, int image) {
  constexpr int C = CA + CB, GROUPS = THREADS / C > 0 ? THREADS / C : 1;
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
    set_norm(norm, c, total, c < CA ? a_pixels : b_pixels);
  }
  __syncthreads();
}

// Write a warp's part of the output and the tile's sums. Weights are ordered so that the columns of
// two neighboring products which a lane holds are four channels side by side: lanes write whole
// sectors of memory.
template <int W, int TW, int COUT, int MT, int NT, int WM>
__device__ __forceinline__ void write_tile(float (&acc)[MT][NT][4], u16* out, float2* scratch,
                                           int ty, int tx, int first_m, int first_n, int warp_m,
                                           int n_local) {
  int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < NT; n += 2) {
    float s[4] = {}, q[4] = {};
    int channel = (first_n + n) * 8 + lane % 4 * 4;
#pragma unroll
    for (int m = 0; m < MT; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int p = (first_m + m) * 16 + lane / 4 + half * 8;
        float v[4] = {acc[m][n][2 * half], acc[m][n][2 * half + 1], acc[m][n + 1][2 * half],
                      acc[m][n + 1][2 * half + 1]};
        *(uint2*)(out + ((ty + p / TW) * W + tx + p % TW) * COUT + channel) =
            make_uint2(pack(v[0], v[1]), pack(v[2], v[3]));
#pragma unroll
        for (int i = 0; i < 4; ++i) s[i] += v[i], q[i] = fmaf(v[i], v[i], q[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int d = 4; d < 32; d *= 2) {
        s[i] += __shfl_xor_sync(~0u, s[i], d);
        q[i] += __shfl_xor_sync(~0u, q[i], d);
      }
      if (lane < 4)
        scratch[warp_m * COUT + channel - n_local * 8 + i] = make_float2(s[i], q[i]);
    }
  }
  __syncthreads();
}

// 3x3 convolution of [A | B] to COUT channels. A comes from a tensor of MODE's size, B (a skip
// connection, CB channels, none where 0) from one of the output's size. A block makes TH x TW
// pixels of COUT / NZ channels of one image with WM x WN warps.
template <int H, int W, int CA, int MODE, int CB, int COUT, int TH, int TW, int WM, int WN, int NZ>
__global__ void __launch_bounds__(WM* WN * 32, TH * TW * (COUT / NZ) <= 8192 ? 3 : 2)
    convolve(const u16* a, const float2* a_sums, int a_tiles, const u16* b, const float2* b_sums,
             int b_tiles, const uint4* weights, u16* out, float2* out_sums, const int* n_images) {
  constexpr int THREADS = WM * WN * 32, CIN = CA + CB, KC = CA < 64 ? CA : 64;
  constexpr int MT = TH * TW / 16 / WM, NT = COUT / NZ / 8 / WN, STRIDE = KC * 2 + 16;
  constexpr int PIXELS = (TH + 2) * (TW + 2);
  static_assert(NT % 2 == 0 && MT * WM * 16 == TH * TW && NT * WN * 8 * NZ == COUT, "tiling");
  static_assert(CB == 0 || CA % KC == 0, "a chunk of channels comes from one tensor");
  SHARED_MEMORY(memory);
  // Scratch of the norms lies where no tile is written, because tiles are loaded meanwhile.
  Norm* norm = (Norm*)(memory + PIXELS * STRIDE);
  int image = blockIdx.y;
  if (image >= *n_images) return;
  constexpr float OWN = (float)H * W;
  constexpr float A_PIXELS = MODE == SAME ? OWN : MODE == POOL ? OWN * 4 : OWN / 4;
  int ty = blockIdx.x / (W / TW) * TH, tx = blockIdx.x % (W / TW) * TW;
  const u16* a_image = a + (long long)image * (int)A_PIXELS * CA;
  const u16* b_image = CB ? b + (long long)image * H * W * CB : b;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warp_m = warp % WM, warp_n = warp / WM;
  int first_n = blockIdx.z * (COUT / NZ / 8) + warp_n * NT;
  u32 base[MT];
#pragma unroll
  for (int m = 0; m < MT; ++m) {
    int p = (warp_m * MT + m) * 16 + lane % 16;
    base[m] = shared_address(memory) + (p / TW * (TW + 2) + p % TW) * STRIDE + lane / 16 * 16;
  }
  float acc[MT][NT][4] = {};
  auto read = [&] {
    read_norms<CA, CB, THREADS>(norm, (float2*)(norm + CIN), a_sums, a_tiles, A_PIXELS, b_sums, b_tiles, OWN,
                                image);
  };
  auto nothing = [] {};
  for (int k0 = 0; k0 < CIN; k0 += KC) {
    constexpr int AHEAD = MODE == SAME ? 4 : 1;
    if (k0 == 0)
      fill_tile<H, W, CA, MODE, TH, TW, KC, THREADS, AHEAD>(memory, a_image, ty, tx, 0, norm, read);
    else if (k0 < CA)
      fill_tile<H, W, CA, MODE, TH, TW, KC, THREADS, AHEAD>(memory, a_image, ty, tx, k0, norm + k0 / 2,
                                                            nothing);
    else
      fill_tile<H, W, CB ? CB : 8, SAME, TH, TW, KC, THREADS, 4>(memory, b_image, ty, tx, k0 - CA,
                                                                 norm + k0 / 2, nothing);
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
  float2* scratch = (float2*)memory;
  write_tile<W, TW, COUT, MT, NT, WM>(acc, out + (long long)image * H * W * COUT, scratch,
                                      ty, tx, warp_m * MT, first_n, warp_m,
                                      blockIdx.z * (COUT / NZ / 8));
  float2* own = out_sums + ((long long)image * gridDim.x + blockIdx.x) * COUT;
  for (int c = threadIdx.x; c < COUT / NZ; c += THREADS) {
    float2 total = make_float2(0.f, 0.f);
    for (int w = 0; w < WM; ++w) {
      float2 s = scratch[w * COUT + c];
      total.x += s.x, total.y += s.y;
    }
    own[blockIdx.z * (COUT / NZ) + c] = total;
  }
}

// The first 3x3 convolution, from images of 32 bit that it normalizes on the way in,
// (value - mean) / (std + 1e-11), and clamps to six deviations where CLAMPS. Nine taps are one
// product's depth.
template <int H, int W, int COUT, int TH, int TW, int WM, int CLAMPS>
__global__ void __launch_bounds__(WM * 32)
    convolve_first(const float* images, const float* means, const float* stds,
                   const uint4* weights, u16* out, float2* out_sums, const int* n_images) {
  constexpr int THREADS = WM * 32, MT = TH * TW / 16 / WM, NT = COUT / 8, WIDTH = TW + 2;
  __shared__ u16 tile[(TH + 2) * WIDTH];
  __shared__ float2 scratch[WM * COUT];
  int image = blockIdx.y;
  if (image >= *n_images) return;
  int ty = blockIdx.x / (W / TW) * TH, tx = blockIdx.x % (W / TW) * TW;
  float mean = means[image], inverse_std = 1.f / (stds[image] + 1e-11f);
  for (int i = threadIdx.x; i < (TH + 2) * WIDTH; i += THREADS) {
    int y = ty - 1 + i / WIDTH, x = tx - 1 + i % WIDTH;
    float v = 0.f;
    if (y >= 0 && y < H && x >= 0 && x < W) {
      v = (images[((long long)image * H + y) * W + x] - mean) * inverse_std;
      if (CLAMPS) v = fminf(fmaxf(v, -6.f), 6.f);
    }
    tile[i] = to_half(v);
  }
  __syncthreads();
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32, k = lane % 4 * 2;
  int tap0 = k / 3 * WIDTH + k % 3, tap1 = (k + 1) / 3 * WIDTH + (k + 1) % 3;
  uint4 wk[NT / 2];
#pragma unroll
  for (int n = 0; n < NT / 2; ++n) wk[n] = __ldg(weights + n * 32 + lane);
  float acc[MT][NT][4] = {};
#pragma unroll
  for (int m = 0; m < MT; ++m) {
    u32 pixels[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int p = (warp * MT + m) * 16 + lane / 4 + half * 8;
      const u16* corner = tile + p / TW * WIDTH + p % TW;
      pixels[half] = corner[tap0] | (u32)corner[tap1] << 16;
      pixels[2 + half] = k == 0 ? corner[2 * WIDTH + 2] : 0;
    }
#pragma unroll
    for (int n = 0; n < NT / 2; ++n) {
      multiply(acc[m][2 * n], pixels, wk[n].x, wk[n].y);
      multiply(acc[m][2 * n + 1], pixels, wk[n].z, wk[n].w);
    }
  }
  write_tile<W, TW, COUT, MT, NT, WM>(acc, out + (long long)image * H * W * COUT, scratch,
                                      ty, tx, warp * MT, 0, warp, 0);
  float2* own = out_sums + ((long long)image * gridDim.x + blockIdx.x) * COUT;
  for (int c = threadIdx.x; c < COUT; c += THREADS) {
    float2 total = make_float2(0.f, 0.f);
    for (int w = 0; w < WM; ++w) {
      float2 s = scratch[w * COUT + c];
      total.x += s.x, total.y += s.y;
    }
    own[c] = total;
  }
}

// The three 1x1 convolutions at the end have no activation between them: one weighted sum.
template <int H, int W, int C>
__global__ void __launch_bounds__(256)
    combine(const u16* a, const float2* a_sums, int a_tiles, const float* weights, float* out,
            const int* n_images) {
  __shared__ uint4 room[C / 4];  // norms, aligned for whole vectors
  Norm* norm = (Norm*)room;
  __shared__ float2 scratch[256];
  int image = blockIdx.y;
  if (image >= *n_images) return;
  read_norms<C, 0, 256>(norm, scratch, a_sums, a_tiles, (float)H * W, a_sums, 0, 1.f, image);
  for (int p = blockIdx.x * 256 + threadIdx.x; p < H * W; p += gridDim.x * 256) {
    const u16* pixel = a + ((long long)image * H * W + p) * C;
    float total = weights[C];
#pragma unroll
    for (int c = 0; c < C; c += 8) {
      float v[8];
      unpack8(v, activate(load8(pixel + c), norm + c / 2));
#pragma unroll
      for (int i = 0; i < 8; ++i) total = fmaf(v[i], weights[c + i], total);
    }
    out[(long long)image * H * W + p] = total;
  }
}

// Norm, ReLU and 2x2 pooling of the last features, H x W before.
template <int H, int W, int C>
__global__ void __launch_bounds__(256)
    flatten(const u16* a, const float2* a_sums, int a_tiles, u16* out, const int* n_images) {
  __shared__ uint4 room[C / 4];  // norms, aligned for whole vectors
  Norm* norm = (Norm*)room;
  __shared__ float2 scratch[C > 256 ? C : 256];
  int image = blockIdx.y;
  if (image >= *n_images) return;
  read_norms<C, 0, 256>(norm, scratch, a_sums, a_tiles, (float)H * W, a_sums, 0, 1.f, image);
  constexpr int HP = H / 2, WP = W / 2;
  const u16* own = a + (long long)image * H * W * C;
  for (int i = blockIdx.x * 256 + threadIdx.x; i < HP * WP * C / 8; i += gridDim.x * 256) {
    int p = i / (C / 8), c = i % (C / 8) * 8, y = p / WP, x = p % WP;
    Raw<POOL> raw;
    fetch<HP, WP, C, POOL>(raw, own, y, x, c);
    *(uint4*)(out + ((long long)image * HP * WP + p) * C + c) = finish<POOL>(raw, y, x, norm + c / 2);
  }
}
