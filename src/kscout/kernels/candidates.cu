// Measure one more column in many states at once: the rank-one change of the zero-filled image.
//
// Pair p adds column `column[p]` to state `parent[p]` of slice `owner[p]`. Written are the complex
// image, its magnitude, and per tile of rows the sum and the sum of squares of the magnitude. One
// coil. A block makes ROWS rows.

template <int ROWS>
__global__ void __launch_bounds__(256)
    measure(const float2* zero_filled, const float2* column_images, const float2* ramps,
            const long long* parent, const long long* owner, const long long* column,
            float2* out, float* magnitude, float2* sums, const int* n_pairs, int n_rows,
            int n_cols) {
  int pair = blockIdx.y;
  if (pair >= *n_pairs) return;
  long long n_pixels = (long long)n_rows * n_cols;
  const float2* before = zero_filled + parent[pair] * n_pixels;
  const float2* profile = column_images + (owner[pair] * n_cols + column[pair]) * n_rows;
  const float2* ramp = ramps + column[pair] * n_cols;
  int first = blockIdx.x * ROWS, last = min(first + ROWS, n_rows);
  float sum = 0.f, squares = 0.f;
  for (int i = first * n_cols + threadIdx.x; i < last * n_cols; i += 256) {
    float2 z = before[i], p = profile[i / n_cols], r = ramp[i % n_cols];
    z.x += p.x * r.x - p.y * r.y;
    z.y += p.x * r.y + p.y * r.x;
    float m = sqrtf(z.x * z.x + z.y * z.y);
    out[pair * n_pixels + i] = z;
    magnitude[pair * n_pixels + i] = m;
    sum += m, squares = fmaf(m, m, squares);
  }
  __shared__ float2 scratch[8];
  for (int d = 16; d > 0; d /= 2) {
    sum += __shfl_down_sync(~0u, sum, d);
    squares += __shfl_down_sync(~0u, squares, d);
  }
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = make_float2(sum, squares);
  __syncthreads();
  if (threadIdx.x == 0) {
    float2 total = make_float2(0.f, 0.f);
    for (int w = 0; w < 8; ++w) total.x += scratch[w].x, total.y += scratch[w].y;
    sums[pair * gridDim.x + blockIdx.x] = total;
  }
}
