// What the kernels ask of the chip beyond C++: 16-bit pairs, tensor-core products, copies ahead.
//
// Every instruction written by hand is here, so that `tests/kernels` can put plain C++ in its place
// and run the kernels without a GPU.

typedef unsigned int u32;
typedef unsigned short u16;

#define SHARED_MEMORY(name) extern __shared__ __align__(16) unsigned char name[]

__device__ __forceinline__ void unpack(u32 v, float& lo, float& hi) {
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
      : "=f"(lo), "=f"(hi) : "r"(v));
}

__device__ __forceinline__ u32 pack(float lo, float hi) {
  u32 v;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(hi), "f"(lo));
  return v;
}

__device__ __forceinline__ u16 to_half(float x) {
  u16 v;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(v) : "f"(x));
  return v;
}

// Two 16-bit floats at a time.
__device__ __forceinline__ u32 max2(u32 a, u32 b) {
  u32 v;
  asm("max.f16x2 %0, %1, %2;" : "=r"(v) : "r"(a), "r"(b));
  return v;
}

__device__ __forceinline__ u32 fma2(u32 a, u32 b, u32 c) {
  u32 v;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(c));
  return v;
}

// max(a * b + c, 0)
__device__ __forceinline__ u32 fma_relu2(u32 a, u32 b, u32 c) {
  u32 v;
  asm("fma.rn.relu.f16x2 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(c));
  return v;
}

__device__ __forceinline__ u32 shared_address(const void* p) {
  return (u32)__cvta_generic_to_shared(p);
}

// Four 8 x 8 matrices of 16 bit; lane l gives the address of row l % 8 of matrix l / 8, and holds of
// each matrix the elements 2 (l % 4) and the next of row l / 4.
__device__ __forceinline__ void load_matrices(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
}

// The same, each matrix transposed on the way.
__device__ __forceinline__ void load_transposed(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
}

// c += a b for a of 16 x 16, b of 16 x 8. Lane l holds of a rows l / 4 and that plus 8, columns
// 2 (l % 4) + {0, 1, 8, 9}; of b column l / 4, rows like a's columns; of c rows like a's, columns
// 2 (l % 4) + {0, 1}.
__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Copies of 16 bytes to shared memory that go on while the thread works.
__device__ __forceinline__ void copy_ahead(u32 to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
}

__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;"); }

// Wait until at most N groups of copies are under way.
template <int N>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N));
}
