/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADGATE_TYPES_H_
#define HEADGATE_TYPES_H_

/** @file
 * Types of all operations of the C API: statuses, tensors, gate functions and precisions. headgate/headgate.h includes
 * this file. */

#include <stddef.h>
#include <stdint.h>

#include "headgate/export.h"

/** Initialises a struct that begins with struct_size: sets struct_size and zeros the rest. The structs' _INIT macros
 * expand to HEADGATE_INIT. */
#ifdef __cplusplus
extern "C++" { /* templates may not stand in the block extern "C" from which a program may include this header */
#ifdef __GNUC__
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#endif
template <class Struct>
constexpr Struct headgate_sized() { /* in C++11, a constexpr function is one statement */
  return {sizeof(Struct)};
}
#ifdef __GNUC__
#pragma GCC diagnostic pop
#endif
}
#define HEADGATE_INIT(Struct) \
  { headgate_sized<Struct>() }
#else
#define HEADGATE_INIT(Struct) \
  { .struct_size = sizeof(Struct) }
#endif

#ifdef __cplusplus
extern "C" {
#endif

/** The status that a function returns. A call that fails has not written any output. */
typedef int32_t headgate_status;
enum {
  HEADGATE_OK = 0,
  HEADGATE_INVALID_ARGUMENT = 1, /**< headgate_last_error names the argument and the values that disagree */
  HEADGATE_OUT_OF_MEMORY = 2,
  HEADGATE_INTERNAL_ERROR = 3
};

/** Returns the error message of this thread's last call that returned a headgate_status. Returns "" if that call
 * succeeded. Never NULL. The string is valid until the next such call of this thread. It is one line of at most 1023
 * bytes. Longer messages are truncated, and control characters become '?'. */
HEADGATE_API const char* headgate_last_error(void);

/* --- tensors ------------------------------------------------------------------------------------------------ */

/** Element types. NONE marks an absent tensor; BF16 and F16 are stored as uint16_t, BOOL as one byte, 0 or 1. */
typedef int32_t headgate_dtype;
enum {
  HEADGATE_DTYPE_NONE = 0,
  HEADGATE_DTYPE_F32 = 1,
  HEADGATE_DTYPE_F64 = 2,
  HEADGATE_DTYPE_BF16 = 3, /**< the upper 16 bits of an IEEE binary32 */
  HEADGATE_DTYPE_F16 = 4,  /**< IEEE binary16 */
  HEADGATE_DTYPE_BOOL = 5,
  HEADGATE_DTYPE_I32 = 6,
  HEADGATE_DTYPE_I64 = 7,
  HEADGATE_DTYPE_I8 = 8
};

/** A non-owning view. Element (i0,i1,i2,i3) is i0*strides[0] + ... + i3*strides[3] elements after data. Strides may be
 * negative, or zero to broadcast an input. Elements of an output must not overlap. data must be aligned to the element
 * size, and may be NULL if the tensor has no elements. A struct of zeros means absent. */
typedef struct headgate_tensor {
  void* data;
  int64_t shape[4];
  int64_t strides[4];
  headgate_dtype dtype;
  int32_t reserved; /**< 0 */
} headgate_tensor;

/** A read-only tensor, otherwise like headgate_tensor. */
typedef struct headgate_const_tensor {
  const void* data;
  int64_t shape[4];
  int64_t strides[4];
  headgate_dtype dtype;
  int32_t reserved; /**< 0 */
} headgate_const_tensor;

#define HEADGATE_ABSENT \
  { NULL, {0, 0, 0, 0}, {0, 0, 0, 0}, HEADGATE_DTYPE_NONE, 0 }

/** Returns a view of contiguous row-major data. A vector of n elements has shape (1,1,1,n). */
HEADGATE_API headgate_tensor headgate_make_tensor(void* data, headgate_dtype dtype, int64_t dim0, int64_t dim1,
                                                  int64_t dim2, int64_t dim3);
HEADGATE_API headgate_const_tensor headgate_make_const_tensor(const void* data, headgate_dtype dtype, int64_t dim0,
                                                              int64_t dim1, int64_t dim2, int64_t dim3);

/** Returns a view (B,H,T,D) of contiguous (B,T,H,D) memory. (B,T,H,D) is the layout between projections. */
HEADGATE_API headgate_tensor headgate_make_bthd_tensor(void* data, headgate_dtype dtype, int64_t B, int64_t T,
                                                       int64_t H, int64_t D);
HEADGATE_API headgate_const_tensor headgate_make_const_bthd_tensor(const void* data, headgate_dtype dtype, int64_t B,
                                                                   int64_t T, int64_t H, int64_t D);

/** Copies `from` to `to` and converts each element to the dtype of `to`. Rounds to nearest, ties to even; f64 to 16
 * bits is rounded to f32 first. Both tensors have the same shape, any strides, and dtype f32, f64, bf16 or f16. They
 * must not overlap. */
HEADGATE_API headgate_status headgate_convert(const headgate_tensor* to, const headgate_const_tensor* from);

/** Quantizes rows to int8: to = round(from / scale) with scale = max|from| / 127 for each row, or 0 for a row of zeros.
 * from is (n0,n1,n2,D), f32, f64, bf16 or f16, and finite. to has the same shape and is i8. scale is (n0,n1,n2,1), f32.
 * */
HEADGATE_API headgate_status headgate_quantize(const headgate_tensor* to, const headgate_tensor* scale,
                                               const headgate_const_tensor* from);

/* --- gate functions ----------------------------------------------------------------------------------------------- */

/** The gate function g(z). */
typedef int32_t headgate_gate_fn;
enum {
  HEADGATE_GATE_FN_NONE = -1,      /**< no gate: `gate` is not applied */
  HEADGATE_GATE_FN_DEFAULT = 0,    /**< sigmoid for attention, silu for the other operations */
  HEADGATE_GATE_FN_SIGMOID = 1,    /**< 1 / (1 + e^-z) */
  HEADGATE_GATE_FN_SIGMOID2 = 2,   /**< 2 sigmoid(z) */
  HEADGATE_GATE_FN_NS_SIGMOID = 3, /**< 0.5 + 0.5 sigmoid(z) */
  HEADGATE_GATE_FN_SILU = 4,       /**< z sigmoid(z) */
  HEADGATE_GATE_FN_SOFTPLUS = 5,   /**< log(1 + e^z) */
  HEADGATE_GATE_FN_IDENTITY = 6    /**< z */
};

/* --- precision ---------------------------------------------------------------------------------------------------- */

/** The precision of the factors in matrix products.
 *
 * EXACT multiplies f32 numbers (f64 for f64 tensors), or bf16 numbers where that loses no precision.
 *
 * NATIVE16 multiplies bf16 numbers and adds in f32, with the instructions that headgate_native16_products names. It
 * needs bf16 q, k and v. Attention rounds the softmax weights to bf16 before their product with v. The backward pass
 * also rounds dy * g, and ds before the products with q and k. NATIVE16 is a permission: calls use bf16 products only
 * where these are faster. Attention computes like EXACT on CPUs without these instructions, for few queries, and with
 * weights, gate_threshold, dropout, or int8 k and v. headgate_linear_attention_options describes what linear attention
 * rounds. */
typedef int32_t headgate_precision;
enum {
  HEADGATE_PRECISION_EXACT = 0,   /**< the default */
  HEADGATE_PRECISION_NATIVE16 = 1 /**< q must be bf16 */
};

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* HEADGATE_TYPES_H_ */
