// What one step of an acquisition does between the networks: choose columns, list those that
// differ, and go on from some of them.

#include "device.cuh"

// One warp chooses for one state, with a distribution as in `column_log_probabilities`: the softmax
// in 32 bit, its sums over columns in 64 bit. Draw d takes the first column at which the sum
// exceeds uniforms[d] of the whole. Shared memory holds 12 bytes per column.
__global__ void __launch_bounds__(32)
    choose(const float* scores, const bool* mask, const bool* selectable, const long long* owner,
           const float* uniforms, bool* blocked, long long* columns, float* log_probs, int n_cols,
           int n_draws) {
  SHARED_MEMORY(memory);
  double* sums = (double*)memory;
  float* logits = (float*)(sums + n_cols);
  long long state = blockIdx.x;
  int lane = threadIdx.x;
  const bool* may = selectable + owner[state] * n_cols;
  float highest = -3.4e38f;
  for (int c = lane; c < n_cols; c += 32) {
    bool is_blocked = mask[state * n_cols + c] || !may[c];
    float logit = is_blocked ? -1e7f : scores[state * n_cols + c];
    blocked[state * n_cols + c] = is_blocked;
    logits[c] = logit;
    highest = fmaxf(highest, logit);
  }
  for (int d = 16; d > 0; d /= 2) highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, d));
  float mass = 0.f;
  for (int c = lane; c < n_cols; c += 32) mass += expf(logits[c] - highest);
  for (int d = 16; d > 0; d /= 2) mass += __shfl_xor_sync(~0u, mass, d);
  float log_mass = logf(mass);
  __syncwarp();
  // A lane adds up neighboring columns, then come the lanes' sums one after another: so the sum
  // does not grow where a probability is zero, and such a column is never drawn.
  int width = (n_cols + 31) / 32;
  int first = min(lane * width, n_cols), last = min(first + width, n_cols);
  double own = 0., before = 0.;
  for (int c = first; c < last; ++c) {
    own += exp((double)(logits[c] - highest - log_mass));
    sums[c] = own;
  }
  for (int l = 0; l < 32; ++l) {
    double other = __shfl_sync(~0u, own, l);
    if (l < lane) before += other;
  }
  for (int c = first; c < last; ++c) sums[c] += before;
  __syncwarp();
  for (int d = lane; d < n_draws; d += 32) {
    double threshold = (double)uniforms[state * n_draws + d] * sums[n_cols - 1];
    int low = 0, high = n_cols - 1;
    while (low < high) {
      int middle = (low + high) / 2;
      if (sums[middle] > threshold) high = middle;
      else low = middle + 1;
    }
    columns[state * n_draws + d] = low;
    log_probs[state * n_draws + d] = logits[low] - highest - log_mass;
  }
}

// One block lists each (state, column) once, in order: its state, column and slice, and how many
// there are. `slot` says where each draw is found. What comes after the last is filled with what
// may be read.
template <int WARPS>
__global__ void __launch_bounds__(32 * WARPS)
    distinct(const long long* columns, const long long* owner, long long* slot, long long* parent,
             long long* listed, long long* listed_owner, int* count, int n_states, int n_draws) {
  __shared__ int totals[WARPS];
  int n = n_states * n_draws, n_listed = 0, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int begin = 0; begin < n; begin += 32 * WARPS) {
    int i = begin + threadIdx.x, state = i / n_draws, first = i;
    if (i < n)
      for (first = state * n_draws; columns[first] != columns[i];) ++first;
    bool is_new = i < n && first == i;
    u32 news = __ballot_sync(~0u, is_new);
    if (lane == 0) totals[warp] = __popc(news);
    __syncthreads();
    int place = n_listed + __popc(news & ((1u << lane) - 1));
    for (int w = 0; w < WARPS; ++w) {
      if (w < warp) place += totals[w];
      n_listed += totals[w];
    }
    if (is_new) {
      slot[i] = place;
      parent[place] = state;
      listed[place] = columns[i];
      listed_owner[place] = owner[state];
    }
    __syncthreads();
    if (i < n && !is_new) slot[i] = slot[first];
  }
  for (int i = n_listed + threadIdx.x; i < n; i += 32 * WARPS)
    parent[i] = 0, listed[i] = 0, listed_owner[i] = owner[0];
  if (threadIdx.x == 0) *count = n_listed;
}

// State s of what is written is state slot[s, choice[s]] of what is read, of n_choices; where there
// is only one, `choice` is not looked at. gridDim.y blocks share one state.
__global__ void __launch_bounds__(256)
    follow(const long long* slot, const long long* choice, int n_choices, const long long* owner,
           const float2* zero_filled, const bool* mask, const float* image, const float* mean,
           const float* std, const float* score, long long* to_owner, float2* to_zero_filled,
           bool* to_mask, float* to_image, float* to_mean, float* to_std, float* to_score,
           int n_values, int n_pixels, int n_cols) {
  long long to = blockIdx.x;
  long long from = slot[to * n_choices + (n_choices > 1 ? choice[to] : 0)];
  int begin = blockIdx.y * blockDim.x + threadIdx.x, stride = gridDim.y * blockDim.x;
  for (int i = begin; i < n_values; i += stride)
    to_zero_filled[to * n_values + i] = zero_filled[from * n_values + i];
  for (int i = begin; i < n_pixels; i += stride)
    to_image[to * n_pixels + i] = image[from * n_pixels + i];
  for (int i = begin; i < n_cols; i += stride) to_mask[to * n_cols + i] = mask[from * n_cols + i];
  if (begin == 0) {
    to_owner[to] = owner[from];
    to_mean[to] = mean[from], to_std[to] = std[from], to_score[to] = score[from];
  }
}
