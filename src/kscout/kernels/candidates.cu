// Measure one more column in many states at once: the rank-one change of the zero-filled image.
//
// Pair p adds column `column[p]` to state `parent[p]` of slice `owner[p]`. Written are the complex
// image, its mask, its magnitude, and the magnitude's mean and standard deviation. One coil. A
// block makes one pair, a warp one row at a time.

template <int WARPS>
__global__ void __launch_bounds__(32 * WARPS)
    measure(const float2* zero_filled, const bool* mask, const float2* column_images,
            const float2* ramps, const long long* parent, const long long* owner,
            const long long* column, float2* out, bool* out_mask, float* magnitude, float* mean,
            float* std, const int* n_pairs, int n_rows, int n_cols) {
  long long pair = blockIdx.x, n_pixels = (long long)n_rows * n_cols;
  // All asked for at once, before the count is known.
  long long state = parent[pair], added = column[pair], slice = owner[pair];
  bool is_pair = pair < *n_pairs;
  // Pairs beyond the count get a mask and statistics too, so that none holds what is no number.
  for (int c = threadIdx.x; c < n_cols; c += 32 * WARPS)
    out_mask[pair * n_cols + c] = mask[state * n_cols + c] || c == added;
  if (!is_pair) {
    if (threadIdx.x == 0) mean[pair] = 0.f, std[pair] = 0.f;
    return;
  }
  const float2* profile = column_images + (slice * n_cols + added) * n_rows;
  const float2* ramp = ramps + added * n_cols;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float part = 0.f, part_of_squares = 0.f;
  for (int row = warp; row < n_rows; row += WARPS) {
    const float2* before = zero_filled + state * n_pixels + (long long)row * n_cols;
    long long to = pair * n_pixels + (long long)row * n_cols;
    float2 p = profile[row];
#pragma unroll 4
    for (int col = lane; col < n_cols; col += 32) {
      float2 z = before[col], r = ramp[col];
      z.x += p.x * r.x - p.y * r.y;
      z.y += p.x * r.y + p.y * r.x;
      float m = sqrtf(z.x * z.x + z.y * z.y);
      out[to + col] = z;
      magnitude[to + col] = m;
      part += m, part_of_squares = fmaf(m, m, part_of_squares);
    }
  }
  __shared__ double scratch[2][WARPS];
  double sum = part, squares = part_of_squares;
  for (int d = 16; d > 0; d /= 2) {
    sum += __shfl_down_sync(~0u, sum, d);
    squares += __shfl_down_sync(~0u, squares, d);
  }
  if (lane == 0) scratch[0][warp] = sum, scratch[1][warp] = squares;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < WARPS; ++w) sum += scratch[0][w], squares += scratch[1][w];
    double center = sum / n_pixels;
    mean[pair] = (float)center;
    std[pair] = (float)sqrt(fmax(squares - sum * center, 0.) / (n_pixels - 1));
  }
}
