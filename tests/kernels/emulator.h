// Runs CUDA kernels as plain C++: each thread of a block is a fiber, blocks run one after another.
//
// A fiber runs until it waits for its block or its warp; when all that live wait, they go on. This
// stands in place of device.cuh.
#include <ucontext.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

typedef unsigned int u32;
typedef unsigned short u16;
#ifdef __aarch64__
typedef __fp16 f16;  // GCC 12 has the other name there in C alone
#else
typedef _Float16 f16;
#endif
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct uint2 { u32 x, y; };
struct uint4 { u32 x, y, z, w; };
struct dim3 { int x, y, z; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
static inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define __restrict__
#define SHARED_MEMORY(name) unsigned char* name = emulator::memory

static dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emulator {
enum Waits { NOTHING, WARP, BLOCK, DONE };
alignas(16) static unsigned char memory[256 * 1024];
struct Fiber { ucontext_t context; Waits waits; std::vector<char> stack; };
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static int current;
static std::function<void()> body;
static unsigned char slots[64][32][16];

static void entry() {
  body();
  fibers[current].waits = DONE;
  swapcontext(&fibers[current].context, &scheduler);
}

static void wait(Waits what) {
  int own = current;
  fibers[own].waits = what;
  swapcontext(&fibers[own].context, &scheduler);
}

static void run_block(int n_threads) {
  fibers.resize(n_threads);
  for (int i = 0; i < n_threads; ++i) {
    Fiber& fiber = fibers[i];
    fiber.stack.resize(256 * 1024);
    fiber.waits = NOTHING;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, entry, 0);
  }
  for (;;) {
    bool ran = false, alive = false, all_block = true;
    for (int i = 0; i < n_threads; ++i) {
      if (fibers[i].waits != NOTHING) continue;
      current = i, threadIdx = {i, 0, 0}, ran = true;
      swapcontext(&scheduler, &fibers[i].context);
    }
    for (int w = 0; w * 32 < n_threads; ++w) {
      bool ready = true;
      for (int i = w * 32; i < (w + 1) * 32 && i < n_threads; ++i) {
        alive |= fibers[i].waits != DONE;
        ready &= fibers[i].waits == WARP || fibers[i].waits == DONE;
        all_block &= fibers[i].waits == BLOCK || fibers[i].waits == DONE;
      }
      if (ready)
        for (int i = w * 32; i < (w + 1) * 32 && i < n_threads; ++i)
          if (fibers[i].waits == WARP) fibers[i].waits = NOTHING, ran = true;
    }
    if (!alive) return;
    if (all_block)
      for (Fiber& fiber : fibers) {
        if (fiber.waits == BLOCK) fiber.waits = NOTHING, ran = true;
      }
    if (!ran) std::fprintf(stderr, "deadlock\n"), std::abort();
  }
}

template <class F>
static void launch(dim3 grid, int n_threads, F kernel) {
  gridDim = grid, blockDim = {n_threads, 1, 1};
  body = kernel;
  for (int z = 0; z < grid.z; ++z)
    for (int y = 0; y < grid.y; ++y)
      for (int x = 0; x < grid.x; ++x) {
        blockIdx = {x, y, z};
        std::memset(memory, 0xff, sizeof memory);  // NaN: what was not written shows
        run_block(n_threads);
      }
}

// Give every lane a value of its warp's other lanes.
template <class T>
static void exchange(T value, T (&all)[32]) {
  int warp = current / 32, lane = current % 32;
  std::memcpy(slots[warp][lane], &value, sizeof value);
  wait(WARP);
  for (int i = 0; i < 32; ++i) std::memcpy(&all[i], slots[warp][i], sizeof value);
  wait(WARP);
}

static float half(u16 bits) { f16 h; std::memcpy(&h, &bits, 2); return (float)h; }
static u16 bits(float x) { f16 h = (f16)x; u16 b; std::memcpy(&b, &h, 2); return b; }
static u16 bits(double x) { f16 h = (f16)x; u16 b; std::memcpy(&b, &h, 2); return b; }
template <class F>
static u32 pairwise(F f) { return bits(f(0)) | (u32)bits(f(16)) << 16; }
}  // namespace emulator

static inline void __syncthreads() { emulator::wait(emulator::BLOCK); }
static inline void __syncwarp() { emulator::wait(emulator::WARP); }
template <class T>
static T __shfl_xor_sync(u32, T v, int d) { T all[32]; emulator::exchange(v, all); return all[threadIdx.x % 32 ^ d]; }
template <class T>
static T __shfl_down_sync(u32, T v, int d) {
  T all[32];
  emulator::exchange(v, all);
  int lane = threadIdx.x % 32;
  return all[lane + d < 32 ? lane + d : lane];
}
template <class T>
static T __shfl_up_sync(u32, T v, int d) {
  T all[32];
  emulator::exchange(v, all);
  int lane = threadIdx.x % 32;
  return all[lane >= d ? lane - d : lane];
}
template <class T>
static T __shfl_sync(u32, T v, int from) { T all[32]; emulator::exchange(v, all); return all[from % 32]; }
static inline u32 __ballot_sync(u32, bool v) {
  int all[32];
  emulator::exchange((int)v, all);
  u32 mask = 0;
  for (int i = 0; i < 32; ++i) mask |= (u32)(all[i] != 0) << i;
  return mask;
}
static inline int __popc(u32 x) { return __builtin_popcount(x); }
template <class T>
static T __ldg(const T* p) { return *p; }
static inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
template <class T>
static T min(T a, T b) { return a < b ? a : b; }
template <class T>
static T max(T a, T b) { return a > b ? a : b; }

// In place of device.cuh.
static inline void unpack(u32 v, float& lo, float& hi) { lo = emulator::half(v), hi = emulator::half(v >> 16); }
static inline u32 pack(float lo, float hi) { return emulator::bits(lo) | (u32)emulator::bits(hi) << 16; }
static inline u16 to_half(float x) { return emulator::bits(x); }
static inline u32 max2(u32 a, u32 b) {
  return emulator::pairwise([=](int s) { return fmaxf(emulator::half(a >> s), emulator::half(b >> s)); });
}
static inline u32 fma2(u32 a, u32 b, u32 c) {
  return emulator::pairwise([=](int s) {
    return (double)emulator::half(a >> s) * emulator::half(b >> s) + emulator::half(c >> s);
  });
}
static inline u32 fma_relu2(u32 a, u32 b, u32 c) { return max2(fma2(a, b, c), 0); }
static inline u32 shared_address(const void* p) { return (u32)((const unsigned char*)p - emulator::memory); }

static inline void load_any(u32 (&r)[4], u32 address, bool transposed) {
  u32 all[32];
  emulator::exchange(address, all);
  int lane = threadIdx.x % 32;
  for (int m = 0; m < 4; ++m) {
    u16 v[2];
    for (int i = 0; i < 2; ++i) {
      int row = lane / 4, col = lane % 4 * 2 + i;
      if (transposed) std::swap(row, col);
      if (all[m * 8 + row] % 16) std::fprintf(stderr, "unaligned row\n"), std::abort();
      std::memcpy(&v[i], emulator::memory + all[m * 8 + row] + col * 2, 2);
    }
    r[m] = v[0] | (u32)v[1] << 16;
  }
}
static inline void load_matrices(u32 (&r)[4], u32 address) { load_any(r, address, false); }
static inline void load_transposed(u32 (&r)[4], u32 address) { load_any(r, address, true); }

static inline void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  struct A { u32 v[4]; } own_a = {{a[0], a[1], a[2], a[3]}}, all_a[32];
  uint2 own_b = {b0, b1}, all_b[32];
  emulator::exchange(own_a, all_a);
  emulator::exchange(own_b, all_b);
  int lane = threadIdx.x % 32;
  for (int i = 0; i < 4; ++i) {
    int row = lane / 4 + i / 2 * 8, col = lane % 4 * 2 + i % 2;
    float sum = 0.f;
    for (int k = 0; k < 16; ++k) {
      u32 x = all_a[row % 8 * 4 + k % 8 / 2].v[k / 8 * 2 + row / 8];
      uint2 pair = all_b[col * 4 + k % 8 / 2];
      u32 y = k / 8 ? pair.y : pair.x;
      sum += emulator::half(x >> k % 2 * 16) * emulator::half(y >> k % 2 * 16);
    }
    c[i] += sum;
  }
}

static inline void copy_ahead(u32 to, const void* from) { std::memcpy(emulator::memory + to, from, 16); }
static inline void end_copies() {}
template <int N>
static void wait_for_copies() {}
