// CUDA's vector types: int2, float4 and the like, with their alignments and make_ functions.
#pragma once

#define EMU_VECTOR1(name, type) \
  struct name##1 { type x; };   \
  inline name##1 make_##name##1(type x) { return {x}; }

#define EMU_VECTOR2(name, type)                            \
  struct alignas(2 * sizeof(type)) name##2 { type x, y; }; \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; }

#define EMU_VECTOR3(name, type)     \
  struct name##3 { type x, y, z; }; \
  inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; }

#define EMU_VECTOR4(name, type)                                                           \
  struct alignas(sizeof(type) == 8 ? 16 : 4 * sizeof(type)) name##4 { type x, y, z, w; }; \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }

#define EMU_VECTORS(name, type) \
  EMU_VECTOR1(name, type)       \
  EMU_VECTOR2(name, type)       \
  EMU_VECTOR3(name, type)       \
  EMU_VECTOR4(name, type)

EMU_VECTORS(char, signed char)
EMU_VECTORS(uchar, unsigned char)
EMU_VECTORS(short, short)
EMU_VECTORS(ushort, unsigned short)
EMU_VECTORS(int, int)
EMU_VECTORS(uint, unsigned int)
EMU_VECTORS(long, long)
EMU_VECTORS(ulong, unsigned long)
EMU_VECTORS(longlong, long long)
EMU_VECTORS(ulonglong, unsigned long long)
EMU_VECTORS(float, float)
EMU_VECTORS(double, double)

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  operator uint3() const { return {x, y, z}; }
};

#undef EMU_VECTORS
#undef EMU_VECTOR1
#undef EMU_VECTOR2
#undef EMU_VECTOR3
#undef EMU_VECTOR4
