/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADGATE_TYPES_H_
#define HEADGATE_TYPES_H_

/** @file
 * What all operations of the C API share: statuses, tensors, gate functions. headgate/headgate.h includes it. */

#include <stddef.h>
#include <stdint.h>

#include "headgate/export.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What a function returns. A call that fails has written none of its outputs. */
typedef int32_t headgate_status;
enum {
  HEADGATE_OK = 0,
  HEADGATE_INVALID_ARGUMENT = 1, /**< headgate_last_error names the argument and the values that disagree */
  HEADGATE_OUT_OF_MEMORY = 2,
  HEADGATE_INTERNAL_ERROR = 3
};

/** One line on why the last call of this thread that returns a headgate_status failed; "" if it did not. Valid until
 * the next such call of this thread. Never NULL. Longer than 1023 bytes it is cut; a control character in an argument
 * becomes '?'. */
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

/** A view that owns nothing: element (i0,i1,i2,i3) lies at data + i0*strides[0] + ... + i3*strides[3], in elements.
 * Strides may be negative, or zero in inputs that broadcast; outputs must not overlap themselves. data is aligned to
 * the element, and may be NULL when there is no element. All zero: absent. */
typedef struct headgate_tensor {
  void* data;
  int64_t shape[4];
  int64_t strides[4];
  headgate_dtype dtype;
  int32_t reserved; /**< 0 */
} headgate_tensor;

/** The same, for what is only read. */
typedef struct headgate_const_tensor {
  const void* data;
  int64_t shape[4];
  int64_t strides[4];
  headgate_dtype dtype;
  int32_t reserved; /**< 0 */
} headgate_const_tensor;

#define HEADGATE_ABSENT \
  { NULL, {0, 0, 0, 0}, {0, 0, 0, 0}, HEADGATE_DTYPE_NONE, 0 }

/** Views of contiguous row-major data. A vector of n elements has shape (1,1,1,n). */
HEADGATE_API headgate_tensor headgate_make_tensor(void* data, headgate_dtype dtype, int64_t dim0, int64_t dim1,
                                                  int64_t dim2, int64_t dim3);
HEADGATE_API headgate_const_tensor headgate_make_const_tensor(const void* data, headgate_dtype dtype, int64_t dim0,
                                                              int64_t dim1, int64_t dim2, int64_t dim3);

/** Views (B,H,T,D) of contiguous (B,T,H,D) memory, the layout of projections. */
HEADGATE_API headgate_tensor headgate_make_bthd_tensor(void* data, headgate_dtype dtype, int64_t B, int64_t T,
                                                       int64_t H, int64_t D);
HEADGATE_API headgate_const_tensor headgate_make_const_bthd_tensor(const void* data, headgate_dtype dtype, int64_t B,
                                                                   int64_t T, int64_t H, int64_t D);

/** to = from, each element rounded to the dtype of `to` (nearest, ties to even; f64 to 16 bits by way of f32). Both of
 * one shape, f32, f64, bf16 or f16, any strides; they must not overlap. */
HEADGATE_API headgate_status headgate_convert(const headgate_tensor* to, const headgate_const_tensor* from);

/** Rows to int8: to = round(from / scale) with scale = max|from| / 127 of each row, 0 for a row of zeros. from:
 * (.,.,.,D), f32, f64, bf16 or f16, finite; to: i8, its shape; scale: f32, its shape with 1 in place of D. */
HEADGATE_API headgate_status headgate_quantize(const headgate_tensor* to, const headgate_tensor* scale,
                                               const headgate_const_tensor* from);

/* --- gate functions ----------------------------------------------------------------------------------------------- */

/** g(z). */
typedef int32_t headgate_gate_fn;
enum {
  HEADGATE_GATE_FN_NONE = -1,      /**< no gate: `gate` is not applied */
  HEADGATE_GATE_FN_DEFAULT = 0,    /**< that of the operation: sigmoid of attention, silu of the others */
  HEADGATE_GATE_FN_SIGMOID = 1,    /**< 1 / (1 + e^-z) */
  HEADGATE_GATE_FN_SIGMOID2 = 2,   /**< 2 sigmoid(z) */
  HEADGATE_GATE_FN_NS_SIGMOID = 3, /**< 0.5 + 0.5 sigmoid(z) */
  HEADGATE_GATE_FN_SILU = 4,       /**< z sigmoid(z) */
  HEADGATE_GATE_FN_SOFTPLUS = 5,   /**< log(1 + e^z) */
  HEADGATE_GATE_FN_IDENTITY = 6    /**< z */
};

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* HEADGATE_TYPES_H_ */
