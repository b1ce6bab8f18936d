// Runs CUDA kernels as plain C++: each thread of a block is a fiber, blocks run one after another.
//
// A fiber runs until it waits for its block or its warp; when all that live wait, they go on. This
// stands in place of device.cuh. Headers of C alone: those of C++ take longer than a kernel does.
#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <ucontext.h>

#include <utility>

// Of <math.h> and <stdlib.h>, which are headers of C++, too.
extern "C" {
float sqrtf(float), expf(float), logf(float);
float fmaxf(float, float), fminf(float, float), fmaf(float, float, float);
double sqrt(double), exp(double), fmax(double, double);
void* malloc(size_t);
[[noreturn]] void abort();
}

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
constexpr size_t STACK = 256 * 1024;
struct Fiber {
  ucontext_t start;  // how it begins; from then on it goes on where it jumped away
  jmp_buf place;
  bool has_begun;
  Waits waits;
  u32 n_exchanges;
  void* stack;
};
static Fiber fibers[1024];
static jmp_buf scheduler;
static int current;
static void (*body)(const void*);
static const void* given;
static unsigned char slots[2][32][32][32];

// Unlike swapcontext these jumps ask nothing of the system.
static void wait(Waits what) {
  Fiber& own = fibers[current];
  own.waits = what;
  if (!_setjmp(own.place)) _longjmp(scheduler, 1);
}

static void entry() {
  body(given);
  wait(DONE);
}

static void go_on(Fiber& fiber) {
  if (_setjmp(scheduler)) return;
  if (fiber.has_begun) _longjmp(fiber.place, 1);
  fiber.has_begun = true;
  setcontext(&fiber.start);
}

static void run_block(int n_threads) {
  if (n_threads > 1024) fprintf(stderr, "too many threads\n"), abort();
  for (int i = 0; i < n_threads; ++i) {
    Fiber& fiber = fibers[i];
    if (!fiber.stack) fiber.stack = malloc(STACK);
    fiber.waits = NOTHING, fiber.has_begun = false, fiber.n_exchanges = 0;
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = fiber.stack;
    fiber.start.uc_stack.ss_size = STACK;
    fiber.start.uc_link = nullptr;
    makecontext(&fiber.start, entry, 0);
  }
  for (;;) {
    bool ran = false, alive = false, all_block = true;
    for (int i = 0; i < n_threads; ++i) {
      if (fibers[i].waits != NOTHING) continue;
      current = i, threadIdx = {i, 0, 0}, ran = true;
      go_on(fibers[i]);
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
      for (int i = 0; i < n_threads; ++i)
        if (fibers[i].waits == BLOCK) fibers[i].waits = NOTHING, ran = true;
    if (!ran) fprintf(stderr, "deadlock\n"), abort();
  }
}

template <class F>
static void launch(dim3 grid, int n_threads, F kernel) {
  gridDim = grid, blockDim = {n_threads, 1, 1};
  body = [](const void* it) { (*(const F*)it)(); }, given = &kernel;
  for (int z = 0; z < grid.z; ++z)
    for (int y = 0; y < grid.y; ++y)
      for (int x = 0; x < grid.x; ++x) {
        blockIdx = {x, y, z};
        memset(memory, 0xff, sizeof memory);  // NaN: what was not written shows
        run_block(n_threads);
      }
}

// Give every lane a value of its warp's other lanes. Two sets of slots take turns: nobody writes into
// one again before all have met at the other, and so have read it.
template <class T>
static void exchange(T value, T (&all)[32]) {
  auto& own = slots[fibers[current].n_exchanges++ % 2][current / 32];
  static_assert(sizeof value <= sizeof own[0]);
  memcpy(own[current % 32], &value, sizeof value);
  wait(WARP);
  for (int i = 0; i < 32; ++i) memcpy(&all[i], own[i], sizeof value);
}

static float half(u16 bits) { f16 h; memcpy(&h, &bits, 2); return (float)h; }
static u16 bits(float x) { f16 h = (f16)x; u16 b; memcpy(&b, &h, 2); return b; }
static u16 bits(double x) { f16 h = (f16)x; u16 b; memcpy(&b, &h, 2); return b; }
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
      if (all[m * 8 + row] % 16) fprintf(stderr, "unaligned row\n"), abort();
      memcpy(&v[i], emulator::memory + all[m * 8 + row] + col * 2, 2);
    }
    r[m] = v[0] | (u32)v[1] << 16;
  }
}
static inline void load_matrices(u32 (&r)[4], u32 address) { load_any(r, address, false); }
static inline void load_transposed(u32 (&r)[4], u32 address) { load_any(r, address, true); }

static inline void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  struct Lane { u32 a[4]; uint2 b; } all[32];
  emulator::exchange(Lane{{a[0], a[1], a[2], a[3]}, {b0, b1}}, all);
  int lane = threadIdx.x % 32;
  for (int i = 0; i < 4; ++i) {
    int row = lane / 4 + i / 2 * 8, col = lane % 4 * 2 + i % 2;
    float sum = 0.f;
    for (int k = 0; k < 16; ++k) {
      u32 x = all[row % 8 * 4 + k % 8 / 2].a[k / 8 * 2 + row / 8];
      uint2 pair = all[col * 4 + k % 8 / 2].b;
      u32 y = k / 8 ? pair.y : pair.x;
      sum += emulator::half(x >> k % 2 * 16) * emulator::half(y >> k % 2 * 16);
    }
    c[i] += sum;
  }
}

static inline void copy_ahead(u32 to, const void* from) { memcpy(emulator::memory + to, from, 16); }
static inline void end_copies() {}
template <int N>
static void wait_for_copies() {}
