// Warp-wide moves of 8x8 matrices of 16-bit elements between shared memory and registers.
// Lane i gives the shared address of row i%8 of matrix i/8; in register j lane i holds elements 2*(i%4) and 2*(i%4)+1
// of row i/4 of matrix j. The transposed forms hold column i/4 instead.

//: ldmatrix
// Loads 1, 2 or 4 matrices (sm_75 and above). Addresses are 16-byte aligned.
__device__ __forceinline__ void ldmatrix(unsigned (&r)[1], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(address) : "memory");
}
__device__ __forceinline__ void ldmatrix(unsigned (&r)[2], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void ldmatrix(unsigned (&r)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

//: ldmatrix_trans
// Loads 1, 2 or 4 matrices, each transposed on the way (sm_75 and above). Addresses are 16-byte aligned.
__device__ __forceinline__ void ldmatrix_trans(unsigned (&r)[1], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(address) : "memory");
}
__device__ __forceinline__ void ldmatrix_trans(unsigned (&r)[2], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void ldmatrix_trans(unsigned (&r)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

//: stmatrix
// Stores 1, 2 or 4 matrices (sm_90 and above). Addresses are 16-byte aligned.
__device__ __forceinline__ void stmatrix(unsigned address, const unsigned (&r)[1]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::"r"(address), "r"(r[0]) : "memory");
}
__device__ __forceinline__ void stmatrix(unsigned address, const unsigned (&r)[2]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(r[0]), "r"(r[1])
               : "memory");
}
__device__ __forceinline__ void stmatrix(unsigned address, const unsigned (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
}

//: stmatrix_trans
// Stores 1, 2 or 4 matrices, each transposed on the way (sm_90 and above). Addresses are 16-byte aligned.
__device__ __forceinline__ void stmatrix_trans(unsigned address, const unsigned (&r)[1]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(address), "r"(r[0]) : "memory");
}
__device__ __forceinline__ void stmatrix_trans(unsigned address, const unsigned (&r)[2]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(r[0]), "r"(r[1])
               : "memory");
}
__device__ __forceinline__ void stmatrix_trans(unsigned address, const unsigned (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}
