// Gradients of a 3x3 convolution of 16 to 32 channels, by its weights and by what it read, at once.
// Layouts: convolution_backward.cu.
//
// Such a layer is wide and has few products to a byte, so its derivative is never written. A block
// goes down strips of an image, four rows a step, and keeps the last rows in shared memory: nothing
// is differentiated or fetched twice. Its warps have different tasks, which run side by side and meet
// once a step: four make the gradient by what was read and four that by weights, while eight make
// the derivatives of the next step from what they fetched a step before. Derivatives reach a row
// beyond what they give gradients of: a step ends one row above its derivatives' last, and a strip
// ends with a step of no rows.

#include "convolution_backward_tiles.cuh"

template <int H, int W, int TW>
struct Strips {
  static constexpr int CIN = 16, COUT = 32, ROWS = 4, STEPS = H / ROWS + 1, MAKERS = 256;
  // Products are 16 columns wide; narrower strips stand in wider rows.
  static constexpr int CHUNKS = TW < 16 ? 1 : TW / 16, COLS = CHUNKS * 16 + 2;
  static constexpr int D_ROW = COLS * COUT * 2, X_ROW = COLS * CIN * 2;
  static constexpr int D_STEPS = 3, X_STEPS = 4;  // in shared memory: copies begin a step earlier
  static constexpr int D_BYTES = D_STEPS * ROWS * D_ROW, X_BYTES = X_STEPS * ROWS * X_ROW;
  static constexpr bool HAS_NEIGHBORS = TW < W;
  static_assert(H % ROWS == 0 && W % TW == 0 && (TW == 8 || TW % 16 == 0), "tiling");
  static_assert((TW / 2 + 2 * HAS_NEIGHBORS) * 4 <= MAKERS, "a thread has one window of a row");

  // One step of a strip of an image.
  struct Step {
    int image, y, x;
    bool has_rows;
    __device__ __forceinline__ Step(int number) {
      int strip = number / STEPS, step = number - strip * STEPS;
      image = strip / (W / TW), y = step * ROWS, x = strip % (W / TW) * TW;
      has_rows = number >= 0 && y < H;
    }
  };

  // Where a step's rows lie; products read its own and the last two of the step before.
  static __device__ __forceinline__ u32 own_rows(u32 first, int number, int n_steps, int row) {
    return first + (number + 1) % n_steps * ROWS * row;
  }
};

// Where eight channels of a pixel lie in a row of derivatives, so that the same channels of eight
// pixels side by side hit different banks, and those of neighbors' windows, too.
__device__ __forceinline__ int place_in_derivatives(int col, int vector) {
  int pair = col >> 1;
  return pair * 128 + ((col ^ pair) & 1) * 64 + (vector ^ (pair & 3)) * 16;
}

// The same in a row of what the convolution read.
__device__ __forceinline__ int place_in_read(int col, int vector) {
  return col * 32 + (vector ^ (col >> 2 & 1)) * 16;
}

// Start to copy a step's rows of what the convolution read.
template <class S, int H, int W, int TW>
__device__ __forceinline__ void copy_rows(unsigned char* rows, const u16* values,
                                          typename S::Step step, int thread) {
  int col = thread / 2 - S::HAS_NEIGHBORS, vector = thread % 2, x = step.x + col;
  if (col >= TW + S::HAS_NEIGHBORS) return;
  unsigned char* to = rows + place_in_read(col + 1, vector);
  const u16* from = values + (((long long)step.image * H + step.y) * W + x) * S::CIN + vector * 8;
#pragma unroll
  for (int row = 0; row < S::ROWS; ++row) {
    if (step.has_rows && (u32)x < W)
      copy_ahead(shared_address(to + row * S::X_ROW), from + row * W * S::CIN);
    else
      *(uint4*)(to + row * S::X_ROW) = make_uint4(OUTSIDE, OUTSIDE, OUTSIDE, OUTSIDE);
  }
}

// The task of eight warps: derivatives of all steps and of the one before the first. A thread has
// eight channels of two windows of 2 x 2 pixels, one above the other, and fetches each for the next
// step as soon as it is done.
template <int H, int W, int TW>
__device__ __forceinline__ void make_derivatives(unsigned char* memory, const u16* own_values,
                                                 const u16* pool_gradient, const float4* factors,
                                                 const u16* values, Range range) {
  using S = Strips<H, W, TW>;
  using Step = typename S::Step;
  unsigned char* read = memory + S::D_BYTES;
  int thread = threadIdx.x % S::MAKERS, window = thread / 4 - S::HAS_NEIGHBORS;
  int vector = thread % 4, c = vector * 8;
  bool has_window = window < TW / 2 + S::HAS_NEIGHBORS;
  int left = place_in_derivatives(2 * window + 1, vector);
  int right = place_in_derivatives(2 * window + 2, vector);
  bool has_left = window >= 0, has_right = window < TW / 2;
  Window<H, W, S::COUT> own[2];
  Factors<S::COUT> own_factors;
  auto is_inside = [&](Step step) {
    return step.has_rows && has_window && (u32)(step.x + 2 * window) < W;
  };
  auto fetch = [&](Step step, int below) {
    if (is_inside(step))
      own[below].fetch(own_values, pool_gradient, step.image, step.y / 2 + below,
                       step.x / 2 + window, c);
  };
  auto make = [&](int number) {
    Step step(number), next(number + 1);
    bool goes_on = number + 1 < range.end;
    if (goes_on)
      copy_rows<S, H, W, TW>(read + S::own_rows(0, number + 1, S::X_STEPS, S::X_ROW), values, next,
                             thread);
    end_copies();
    if (step.has_rows) own_factors.fetch(factors, step.image, c);
    unsigned char* rows = memory + S::own_rows(0, number, S::D_STEPS, S::D_ROW);
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      u32 v[4][4] = {};
      if (is_inside(step)) own[below].differentiate_to(v, own_factors);
      if (goes_on) fetch(next, below);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        unsigned char* row = rows + (2 * below + k / 2) * S::D_ROW;
        if (has_window && (k % 2 ? has_right : has_left))
          *(uint4*)(row + (k % 2 ? right : left)) = join(v[k]);
      }
    }
    wait_for_copies<1>();
  };
  Step before(range.item - 1);
  copy_rows<S, H, W, TW>(read + S::own_rows(0, range.item - 1, S::X_STEPS, S::X_ROW), values,
                         before, thread);
  end_copies();
  fetch(before, 0), fetch(before, 1);
#pragma unroll 1
  for (int number = range.item - 1; number < range.end; ++number) {
    make(number);
    if (number >= range.item) __syncthreads();
  }
  __syncthreads();
}

// The task of four warps: the gradient by what the convolution read, and its sums, 16 columns at a
// time. Weights stay in registers, but for those of the third column of taps: without these there is
// room for what comes after the products.
template <int H, int W, int TW>
__device__ __forceinline__ void make_gradient(const unsigned char* memory, const uint4* weights,
                                              const float2* norms, u16* gradient, float2* sums,
                                              Range range) {
  using S = Strips<H, W, TW>;
  const unsigned char* read = memory + S::D_BYTES;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  uint4 w[9][2];
#pragma unroll
  for (int tap = 0; tap < 9; ++tap)
#pragma unroll
    for (int k = 0; k < 2; ++k)
      if (tap % 3 < 2) w[tap][k] = __ldg(weights + (tap * 2 + k) * 32 + lane);
  u32 corners[3], kept = shared_address(read) + S::X_BYTES + lane * 16;
#pragma unroll
  for (int dx = 0; dx < 3; ++dx) corners[dx] = place_in_derivatives(lane % 16 + dx, lane / 16);
  int x_place = place_in_read(lane / 4 + 1, lane / 2 % 2) + lane % 2 * 8;  // of four channels
  for (int number = range.item; number < range.end; ++number) {
    __syncthreads();
    typename S::Step step(number);
    u32 base = shared_address(memory);
    u32 own = S::own_rows(base, number, S::D_STEPS, S::D_ROW);
    u32 before = S::own_rows(base, number - 1, S::D_STEPS, S::D_ROW) + 2 * S::D_ROW;
    const unsigned char* x_own = read + S::own_rows(0, number, S::X_STEPS, S::X_ROW);
    const unsigned char* x_before =
        read + S::own_rows(0, number - 1, S::X_STEPS, S::X_ROW) + 3 * S::X_ROW;
#pragma unroll 1
    for (int chunk = warp; chunk < S::CHUNKS; chunk += 4) {
      float acc[S::ROWS][2][4] = {};
#pragma unroll
      for (int part = 0; part < 6; ++part) {
        int dx = part / 2, k = part % 2;
#pragma unroll
        for (int dy = 0; dy < 3 && dx == 2; ++dy) {
          u32 v[4];
          load_matrices(v, kept + (dy * 2 + k) * 512);
          w[dy * 3 + dx][k] = make_uint4(v[0], v[1], v[2], v[3]);
        }
        u32 at = (corners[dx] ^ k * 32) + chunk * 16 * S::COUT * 2;
#pragma unroll
        for (int r = 0; r < S::ROWS + 2; ++r) {
          u32 pixels[4];
          load_matrices(pixels, at + (r < 2 ? before + r * S::D_ROW : own + (r - 2) * S::D_ROW));
#pragma unroll
          for (int dy = 0; dy < 3; ++dy) {
            int m = r - dy;
            if (m < 0 || m >= S::ROWS) continue;
            const uint4& taken = w[dy * 3 + dx][k];
            multiply(acc[m][0], pixels, taken.x, taken.y);
            multiply(acc[m][1], pixels, taken.z, taken.w);
          }
        }
      }
      int x = chunk * 16;
      long long first = ((long long)step.image * H + step.y - 1) * W + step.x + x;
      // Sums are to take finite values, also beside the image, where no gradient passes.
      auto values_at = [&](int row, int col, int) {
        constexpr u32 LOWEST = 0xfbfffbff;
        const unsigned char* from = row ? x_own + (row - 1) * S::X_ROW : x_before;
        // Eight columns further, vectors have the same order.
        uint2 v = *(const uint2*)(from + x * 32 + x_place + col / 8 * 256);
        return make_uint2(max2(v.x, LOWEST), max2(v.y, LOWEST));
      };
      write_gradient<W, S::CIN>(
          acc, gradient + first * S::CIN, norms + step.image * S::CIN,
          sums + ((long long)number * S::CHUNKS + chunk) * S::CIN, Place<16, S::ROWS>(0), values_at,
          [&](int row, int col) {
            return (u32)(step.y - 1 + row) < H && (TW >= 16 || col < TW);
          });
    }
  }
  __syncthreads();
}

// The task of four warps: the gradient by weights. Each has all output channels, eight of the input's
// and every other 16 columns.
template <int H, int W, int TW>
__device__ __forceinline__ void make_weights(const unsigned char* memory, const float2* norms,
                                             float* out, Range range) {
  using S = Strips<H, W, TW>;
  int lane = threadIdx.x % 32, half = threadIdx.x / 32 % 2, share = threadIdx.x / 64 % 2;
  u32 base = shared_address(memory), read = base + S::D_BYTES;
  // Rows of the matrices that a lane names are pixels: see load_transposed. Of what was read, a load
  // brings two taps: the first two of a row, or the third of a row and of the next.
  u32 left = place_in_derivatives(1 + lane % 8 + lane / 16 * 8, lane / 8 % 2);
  u32 first_two = place_in_read(lane % 16 + lane / 16, half);
  u32 third = place_in_read(lane % 16 + 2, half) + lane / 16 * S::X_ROW;
  float acc[9][2][4] = {};
  for (int number = range.item; number < range.end; ++number) {
    __syncthreads();
    const float2* own_norm = norms + typename S::Step(number).image * S::CIN + half * 8 + lane / 4;
    uint2 norm = norm_pair(__ldg(own_norm));
    u32 own = S::own_rows(base, number, S::D_STEPS, S::D_ROW);
    u32 before = S::own_rows(base, number - 1, S::D_STEPS, S::D_ROW) + 3 * S::D_ROW;
    u32 x_own = S::own_rows(read, number, S::X_STEPS, S::X_ROW);
    u32 x_before = S::own_rows(read, number - 1, S::X_STEPS, S::X_ROW) + 2 * S::X_ROW;
#pragma unroll 1
    for (int chunk = share; chunk < S::CHUNKS; chunk += 2) {
      u32 d_at = chunk * 16 * S::COUT * 2, x_at = chunk * 16 * S::CIN * 2;
      u32 derivatives[S::ROWS][2][4];
#pragma unroll
      for (int r = 0; r < S::ROWS + 2; r += 2) {
        u32 pair = x_at + (r == 0 ? x_before : x_own + (r - 2) * S::X_ROW), taps[3][4];
        load_transposed(taps[0], pair + first_two);
        load_transposed(taps[1], pair + third);
        load_transposed(taps[2], pair + first_two + S::X_ROW);
#pragma unroll
        for (int i = 0; i < 12; ++i)
          taps[i / 4][i % 4] = fma_relu2(taps[i / 4][i % 4], norm.x, norm.y);
#pragma unroll
        for (int below = 0; below < 2; ++below) {
          int newest = r + below;
#pragma unroll
          for (int m = 0; m < 2; ++m)
            if (newest < S::ROWS)
              load_transposed(derivatives[newest][m],
                              d_at + (left ^ m * 32) +
                                  (newest ? own + (newest - 1) * S::D_ROW : before));
#pragma unroll
          for (int tap = 0; tap < 9; ++tap) {
            int y = newest - tap / 3, dx = tap % 3;
            if (y < 0 || y >= S::ROWS) continue;
            const u32* right = dx == 2 ? taps[1] + 2 * below : taps[2 * below] + 2 * dx;
            multiply(acc[tap][0], derivatives[y][0], right[0], right[1]);
            multiply(acc[tap][1], derivatives[y][1], right[0], right[1]);
          }
        }
      }
    }
  }
  __syncthreads();
  write_weights<S::COUT, S::CIN>(
      acc, out + (long long)(blockIdx.x * 2 + share) * 9 * S::COUT * S::CIN + half * 8);
}

// Keep weights of the third column of taps as matrices: [row of taps][16 channels][four matrices].
__device__ __forceinline__ void keep_weights(u32* kept, const uint4* weights) {
  int i = threadIdx.x, lane = i % 32;
  if (i >= 6 * 32) return;
  u32 v[4];
  split(v, __ldg(weights + ((i / 64 * 3 + 2) * 2 + i / 32 % 2) * 32 + lane));
#pragma unroll
  for (int matrix = 0; matrix < 4; ++matrix) kept[i / 32 * 128 + matrix * 32 + lane] = v[matrix];
}

// `pool_gradient` is by the convolution's pooled output, `own_values` are its output, `factors` those
// of its norm; `values` and `norms` are of the layer before, as it read them. It leaves `gradient`
// with its `sums`, a part for 16 columns of a step, and `out`: [worker][tap][32][16], two workers to
// a block.
template <int H, int W, int TW>
__global__ void __launch_bounds__(512, 1)
    differentiate_thin(const u16* own_values, const u16* pool_gradient, const float4* factors,
                       const uint4* weights, const u16* values, const float2* norms, u16* gradient,
                       float2* sums, float* out, int n_images) {
  using S = Strips<H, W, TW>;
  SHARED_MEMORY(memory);
  // What lies beside the image is never written again.
  for (int i = threadIdx.x * 16; i < S::D_BYTES + S::X_BYTES; i += 512 * 16) {
    u32 v = i < S::D_BYTES ? 0 : OUTSIDE;
    *(uint4*)(memory + i) = make_uint4(v, v, v, v);
  }
  keep_weights((u32*)(memory + S::D_BYTES + S::X_BYTES), weights);
  __syncthreads();
  Range range(n_images * (W / TW) * S::STEPS);
  int warp = threadIdx.x / 32;
  if (warp >= 8)
    make_derivatives<H, W, TW>(memory, own_values, pool_gradient, factors, values, range);
  else if (warp < 4)
    make_gradient<H, W, TW>(memory, weights, norms, gradient, sums, range);
  else
    make_weights<H, W, TW>(memory, norms, out, range);
}
