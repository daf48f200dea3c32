/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADGATE_HEADGATE_H_
#define HEADGATE_HEADGATE_H_

#include <stddef.h>
#include <stdint.h>

#include "headgate/export.h"
#include "headgate/version.h"

/*
 * Gated attention (arXiv 2505.06708), exact, in O(T) memory: the C API, C99. It is the C++ API of
 * headgate/attention.hpp, merge.hpp, statistics.hpp, cache.hpp, linear_attention.hpp and runtime.hpp argument for
 * argument, and computes the same bits.
 *
 *   s    = softcap(scale . q k^T) - slope_h . |at_i - j| + bias             softcap(x) = c . tanh(x / c)
 *   lse  = log( sum over visible j of exp(s_j), + exp(sink_h) )             natural logarithm
 *   o    = sum over visible j of exp(s_j - lse) v_j
 *   y    = o * g(z)   or   o + g(z)                                         z: raw gate logits
 *
 * Letters: B batch, T queries, S keys, Hq query heads, Hkv key/value heads (Hq a multiple of Hkv; query head h reads
 * key/value head h / (Hq/Hkv)), D head dim of q and k, Dv head dim of v and y.
 * at_i is the key position at which query i stands: i + S - T, or query_offsets[b] + i.
 *
 * A packed batch holds N sequences of any lengths, one after the other, without padding: B is 1, the T rows of q and of
 * all that has a row for each query hold T_0 + ... + T_(N-1) queries, the S rows of k and v S_0 + ... + S_(N-1) keys.
 * Query i of sequence n is row cu_seqlens_q[n] + i, its key j row cu_seqlens_k[n] + j. Queries see keys of their own
 * sequence alone, and T_n, S_n, i and j take the places of T, S, i and j above: at_i = i + S_n - T_n, or
 * query_offsets[n] + i.
 *
 * Structs that may grow begin with struct_size; the other fields are absent or at their default where they are zero.
 * Initialise each with its _INIT macro, which sets struct_size and zeros the rest, or do the same by hand:
 *
 *   headgate_attention_inputs inputs = HEADGATE_ATTENTION_INPUTS_INIT;
 *   inputs.q = headgate_make_const_tensor(q, HEADGATE_DTYPE_F32, B, Hq, T, D);
 *   headgate_attention_options options = {.struct_size = sizeof options, .causality = HEADGATE_CAUSALITY_CAUSAL};
 *
 * Later versions add fields at the end, and zero there will mean what their absence meant. So a library takes the
 * smaller structs of every older version, and a larger one of a newer version as long as the bytes it does not know
 * are zero; if not, or if struct_size fits no version, the call returns HEADGATE_INVALID_ARGUMENT. Before 1.0 a minor
 * version may change structs and constants otherwise, and has a library name (soname) of its own. 0.2 did: a window
 * is read when has_window is 1, and the gate function 0 is the default.
 *
 * Every function may be called from several threads at once, except where it says otherwise, and in a child of fork().
 * No C++ exception leaves the library, and it never prints nor ends the process.
 */

#ifdef __cplusplus
extern "C" {
#endif

/* What a function returns. A call that fails has written none of its outputs. */
typedef int32_t headgate_status;
enum {
  HEADGATE_OK = 0,
  HEADGATE_INVALID_ARGUMENT = 1, /* headgate_last_error names the argument and the values that disagree */
  HEADGATE_OUT_OF_MEMORY = 2,
  HEADGATE_INTERNAL_ERROR = 3
};

/* One line on why the last call of this thread that returns a headgate_status failed; "" if it did not. Valid until
 * the next such call of this thread. Never NULL. Longer than 1023 bytes it is cut. */
HEADGATE_API const char* headgate_last_error(void);

/* --- tensors ------------------------------------------------------------------------------------------------ */

/* Element types. NONE marks an absent tensor; BF16 and F16 are stored as uint16_t, BOOL as one byte, 0 or 1. */
typedef int32_t headgate_dtype;
enum {
  HEADGATE_DTYPE_NONE = 0,
  HEADGATE_DTYPE_F32 = 1,
  HEADGATE_DTYPE_F64 = 2,
  HEADGATE_DTYPE_BF16 = 3, /* the upper 16 bits of an IEEE binary32 */
  HEADGATE_DTYPE_F16 = 4,  /* IEEE binary16 */
  HEADGATE_DTYPE_BOOL = 5,
  HEADGATE_DTYPE_I32 = 6,
  HEADGATE_DTYPE_I64 = 7,
  HEADGATE_DTYPE_I8 = 8
};

/* A view that owns nothing: element (i0,i1,i2,i3) lies at data + i0*strides[0] + ... + i3*strides[3], in elements.
 * Strides may be negative, or zero in inputs that broadcast; outputs must not overlap themselves. data is aligned to
 * the element, and may be NULL when there is no element. All zero: absent. */
typedef struct headgate_tensor {
  void* data;
  int64_t shape[4];
  int64_t strides[4];
  headgate_dtype dtype;
  int32_t reserved; /* 0 */
} headgate_tensor;

/* The same, for what is only read. */
typedef struct headgate_const_tensor {
  const void* data;
  int64_t shape[4];
  int64_t strides[4];
  headgate_dtype dtype;
  int32_t reserved; /* 0 */
} headgate_const_tensor;

#define HEADGATE_ABSENT \
  { NULL, {0, 0, 0, 0}, {0, 0, 0, 0}, HEADGATE_DTYPE_NONE, 0 }

/* Views of contiguous row-major data. A vector of n elements has shape (1,1,1,n). */
HEADGATE_API headgate_tensor headgate_make_tensor(void* data, headgate_dtype dtype, int64_t dim0, int64_t dim1,
                                                  int64_t dim2, int64_t dim3);
HEADGATE_API headgate_const_tensor headgate_make_const_tensor(const void* data, headgate_dtype dtype, int64_t dim0,
                                                              int64_t dim1, int64_t dim2, int64_t dim3);

/* Views (B,H,T,D) of contiguous (B,T,H,D) memory, the layout of projections. */
HEADGATE_API headgate_tensor headgate_make_bthd_tensor(void* data, headgate_dtype dtype, int64_t B, int64_t T,
                                                       int64_t H, int64_t D);
HEADGATE_API headgate_const_tensor headgate_make_const_bthd_tensor(const void* data, headgate_dtype dtype, int64_t B,
                                                                   int64_t T, int64_t H, int64_t D);

/* to = from, each element rounded to the dtype of `to` (nearest, ties to even; f64 to 16 bits by way of f32). Both of
 * one shape, f32, f64, bf16 or f16, any strides; they must not overlap. */
HEADGATE_API headgate_status headgate_convert(const headgate_tensor* to, const headgate_const_tensor* from);

/* Rows to int8: to = round(from / scale) with scale = max|from| / 127 of each row, 0 for a row of zeros. from:
 * (.,.,.,D), f32, f64, bf16 or f16, finite; to: i8, its shape; scale: f32, its shape with 1 in place of D. */
HEADGATE_API headgate_status headgate_quantize(const headgate_tensor* to, const headgate_tensor* scale,
                                               const headgate_const_tensor* from);

/* --- options ------------------------------------------------------------------------------------------------ */

/* g(z). */
typedef int32_t headgate_gate_fn;
enum {
  HEADGATE_GATE_FN_NONE = -1,      /* no gate: `gate` is not applied */
  HEADGATE_GATE_FN_DEFAULT = 0,    /* sigmoid */
  HEADGATE_GATE_FN_SIGMOID = 1,    /* 1 / (1 + e^-z) */
  HEADGATE_GATE_FN_SIGMOID2 = 2,   /* 2 sigmoid(z) */
  HEADGATE_GATE_FN_NS_SIGMOID = 3, /* 0.5 + 0.5 sigmoid(z) */
  HEADGATE_GATE_FN_SILU = 4,       /* z sigmoid(z) */
  HEADGATE_GATE_FN_SOFTPLUS = 5,   /* log(1 + e^z) */
  HEADGATE_GATE_FN_IDENTITY = 6    /* z */
};

/* How g(z) meets the attention output o. */
typedef int32_t headgate_gate_op;
enum {
  HEADGATE_GATE_OP_MUL = 0, /* y = o * g(z) */
  HEADGATE_GATE_OP_ADD = 1  /* y = o + g(z) */
};

typedef int32_t headgate_causality;
enum {
  HEADGATE_CAUSALITY_NONE = 0,
  HEADGATE_CAUSALITY_CAUSAL = 1 /* key j is visible to query i iff j <= at_i */
};

/* What products are made of. NATIVE16, for bf16 q, k and v: bf16 numbers with f32 sums, in the instructions of the CPU
 * (headgate_native16_products); weights, and backward dy * g and ds, are rounded to bf16 before they are multiplied. It
 * permits this where it is faster: on CPUs without it, and for what its kernels leave out (weights, gate_threshold,
 * int8 k and v, few queries, dbias), calls compute as EXACT does. */
typedef int32_t headgate_precision;
enum {
  HEADGATE_PRECISION_EXACT = 0,   /* f32 numbers (f64 for f64), or bf16 numbers where nothing is lost by it */
  HEADGATE_PRECISION_NATIVE16 = 1 /* q must be bf16 */
};

/* Zeros are the defaults: 1/sqrt(D), no cap, no window, not causal, sigmoid, multiplied. A value that stands where its
 * has_ field is 0 is refused, so that none is passed over unnoticed. */
typedef struct headgate_attention_options {
  size_t struct_size;
  double scale;   /* with has_scale 1; finite */
  double softcap; /* c > 0; 0 for no cap */
  /* With has_window 1: key j is visible to query i iff at_i - window_left <= j <= at_i + window_right; -1 for no limit
   * on that side. */
  int64_t window_left;
  int64_t window_right;
  int32_t has_scale;            /* 1: scale as given; 0: 1/sqrt(D) */
  int32_t has_window;           /* 1: the window as given; 0: no window */
  headgate_causality causality; /* combines with the window by "and" */
  headgate_gate_fn gate_fn;     /* applied when `gate` is present */
  headgate_gate_op gate_op;
  int32_t threads;    /* 0: headgate_default_threads(). At most 4 a processor, or 16, are used. Always the same bits. */
  const char* target; /* a name of headgate_supported_targets(); NULL or "": headgate_active_target() */
  const char* backend; /* a name of headgate_supported_backends(); NULL or "": the one that headgate_set_backend()
                          forces, else the first that can compute the call */
  /* tau > 0, finite; 0: off. A row (a query of a head) whose gate is small, |g(z)| <= tau in every feature, is closed:
   * it is not computed, and its part of y is 0, within tau * max |v| over the keys that it sees. Closed rows cost next
   * to nothing, and keys and values that no open row sees are not read. Forward only, with a gate that multiplies. A
   * gate within rounding of tau may fall on either side. */
  double gate_threshold;
  headgate_precision precision;
  int32_t reserved; /* 0 */
} headgate_attention_options;

#define HEADGATE_ATTENTION_OPTIONS_INIT                                                                          \
  {                                                                                                              \
    sizeof(headgate_attention_options), 0.0, 0.0, 0, 0, 0, 0, HEADGATE_CAUSALITY_NONE, HEADGATE_GATE_FN_DEFAULT, \
        HEADGATE_GATE_OP_MUL, 0, NULL, NULL, 0.0, HEADGATE_PRECISION_EXACT, 0                                    \
  }

/* --- forward ------------------------------------------------------------------------------------------------ */

/* What the operation reads. q, k and v are required and share one of f32, f64, bf16, f16, or k and v are i8 with
 * scales; the rest may be absent. Any strides. Visibility by causality, window, mask and key_lengths combines by "and".
 * Query i stands at key position at_i = i + S - T, or query_offsets[b] + i; key_lengths does not move it. */
typedef struct headgate_attention_inputs {
  size_t struct_size;
  headgate_const_tensor q;             /* (B,Hq,T,D), 1 <= D <= 512 */
  headgate_const_tensor k;             /* (B,Hkv,S,D); with a block table (P,Hkv,page,D) */
  headgate_const_tensor v;             /* (B,Hkv,S,Dv), 1 <= Dv <= 512; with a block table (P,Hkv,page,Dv) */
  headgate_const_tensor gate;          /* z (B,Hq,T,1) headwise or (B,Hq,T,Dv) elementwise; dtype of q, or f32 */
  headgate_const_tensor bias;          /* (B|1,Hq|1,T|1,S); dtype of q, or f32; -inf hides the key; +inf and NaN give
                                          NaN rows */
  headgate_const_tensor mask;          /* (B|1,Hq|1,T|1,S), bool, true = visible */
  headgate_const_tensor key_lengths;   /* (1,1,1,B), i32 or i64, 0 <= n <= S: keys >= n are hidden, and neither read
                                          nor aligned to */
  headgate_const_tensor alibi_slopes;  /* (1,1,1,Hq), f32 or f64, finite */
  headgate_const_tensor sinks;         /* (1,1,1,Hq), f32 or f64: a logit, finite or -inf, that joins the denominator
                                          without a value */
  headgate_const_tensor query_offsets; /* (1,1,1,B), i32 or i64, within +-2^60: at_0, the key position of the first
                                          query of each sequence. With T new tokens at the end of n keys in a cache of
                                          S slots: key_lengths n, query_offsets n - T */
  /* (1,1,1,N+1), i32 or i64, both, or cu_seqlens_q and block_table: a packed batch (above). 0 first, never decreasing
   * (equal: an empty sequence), T and S last. key_lengths (n <= S_n) and query_offsets then have N entries; bias, mask
   * and weights keep their shapes over all T rows and S columns, of which those of another sequence are not read, and
   * written as 0. A sequence gets the same bits as by itself. */
  headgate_const_tensor cu_seqlens_q;
  headgate_const_tensor cu_seqlens_k;
  headgate_const_tensor block_table; /* (1,1,B|N,M), i32; forward only. k and v are P pages of `page` tokens, and key j
                                        of sequence b is row j % page of page e = block_table[b][j / page], 0 <= e < P;
                                        sequences may share pages. S = M*page; key_lengths is required. Entries and
                                        pages of no key before the length are not read. Of a packed batch only the
                                        queries are packed: bias, mask and weights have the S columns of a query's own
                                        sequence, and without query_offsets the last query of a sequence stands at the
                                        last of its key_lengths[n] keys */
  headgate_const_tensor k_scale;     /* (B,Hkv,S,1), with a block table (P,Hkv,page,1), f32; forward only. Required
                                        with k and v of dtype i8, else absent: key j is k_scale[j]*k[j], its value
                                        v_scale[j]*v[j]. q is then of any of its dtypes, which y has */
  headgate_const_tensor v_scale;     /* as k_scale */
} headgate_attention_inputs;

#define HEADGATE_ATTENTION_INPUTS_INIT                                                                        \
  {                                                                                                           \
    sizeof(headgate_attention_inputs), HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT,    \
        HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, \
        HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT                   \
  }

/* What the forward pass overwrites. y is required; the rest may be absent. */
typedef struct headgate_attention_outputs {
  size_t struct_size;
  headgate_tensor y;       /* (B,Hq,T,Dv), dtype of q */
  headgate_tensor lse;     /* (B,Hq,T,1), f32 or f64, natural log, sink included; -inf for a row that sees nothing */
  headgate_tensor attn;    /* o (B,Hq,T,Dv), dtype of q: the output before the gate */
  headgate_tensor weights; /* exp(s - lse) (B,Hq,T,S), dtype of q: T*S large, for small problems */
} headgate_attention_outputs;

#define HEADGATE_ATTENTION_OUTPUTS_INIT \
  { sizeof(headgate_attention_outputs), HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT }

/* y = gate(z) * softmax(scale . q k^T + bias, mask) v.
 *
 * A row with no visible key has o = 0 and lse = -inf (the sink's logit when there is one). A row that gate_threshold
 * closes has y = 0, o = 0, weights = 0 and lse = +inf, which headgate_attention_backward refuses; the last bits of an
 * open row may depend on which other rows of its head are open.
 * 16-bit types accumulate in f32; the gate is applied in f32 or better before the one rounding to storage.
 * Deterministic: the same bits for any number of threads. Outputs must not overlap inputs or each other; views that
 * interleave in one buffer do not. `options` may be NULL for the defaults. */
HEADGATE_API headgate_status headgate_attention_forward(const headgate_attention_outputs* outputs,
                                                        const headgate_attention_inputs* inputs,
                                                        const headgate_attention_options* options);

/* --- backward ----------------------------------------------------------------------------------------------- */

/* What the backward pass needs of the forward pass: y and lse, and
 *   silu or identity, multiplied (g may be 0: o is lost in y)  attn, for dgate
 *   any gate that is added                                     attn if at hand: it spares the cancellation in y - g(z)
 */
typedef struct headgate_attention_saved {
  size_t struct_size;
  headgate_const_tensor y;    /* (B,Hq,T,Dv) */
  headgate_const_tensor lse;  /* (B,Hq,T,1), f32 or f64, sink included */
  headgate_const_tensor attn; /* (B,Hq,T,Dv) */
} headgate_attention_saved;

#define HEADGATE_ATTENTION_SAVED_INIT \
  { sizeof(headgate_attention_saved), HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT }

/* Incoming gradients. dy is required; without dlse it counts as zero. */
typedef struct headgate_attention_incoming {
  size_t struct_size;
  headgate_const_tensor dy;   /* (B,Hq,T,Dv), dtype of q */
  headgate_const_tensor dlse; /* (B,Hq,T,1), f32 or f64 */
} headgate_attention_incoming;

#define HEADGATE_ATTENTION_INCOMING_INIT \
  { sizeof(headgate_attention_incoming), HEADGATE_ABSENT, HEADGATE_ABSENT }

/* Gradients to write; each may be absent. All are overwritten, never added to. */
typedef struct headgate_attention_gradients {
  size_t struct_size;
  headgate_tensor dq;     /* (B,Hq,T,D), dtype of q */
  headgate_tensor dk;     /* (B,Hkv,S,D), dtype of q, summed over the query heads of the group */
  headgate_tensor dv;     /* (B,Hkv,S,Dv), dtype of q */
  headgate_tensor dgate;  /* shape and dtype of gate; summed over Dv when headwise; refused without a gate function */
  headgate_tensor dbias;  /* shape and dtype of bias; summed over its broadcast dimensions */
  headgate_tensor dsinks; /* (1,1,1,Hq), dtype of sinks */
} headgate_attention_gradients;

#define HEADGATE_ATTENTION_GRADIENTS_INIT                                                                     \
  {                                                                                                           \
    sizeof(headgate_attention_gradients), HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, \
        HEADGATE_ABSENT, HEADGATE_ABSENT                                                                      \
  }

/* Gradients of sum(dy*y) + sum(dlse*lse). With P = exp(s - lse):
 *   do = dy * g(z) (mul) or dy (add);  delta = rowsum(do * o) = rowsum(dy * y) for mul;
 *   ds = P * (do v^T - delta + dlse);  dq = scale . ds' k;  dk = scale . ds'^T q;  dv = P^T do;  dbias = ds;
 *   dsink = -exp(sink - lse)(delta - dlse);  dz = dy * o * g'(z), for sigmoid dy * y * (1 - g);
 * with ds' = ds * (1 - tanh^2) under a softcap and ds otherwise.
 * `inputs` and `options` are those of the forward pass. Refused are a gate_threshold above 0 and an lse of +inf: a row
 * that was not computed has no gradients. Gradients accumulate in f32 or better; deterministic. */
HEADGATE_API headgate_status headgate_attention_backward(const headgate_attention_gradients* gradients,
                                                         const headgate_attention_inputs* inputs,
                                                         const headgate_attention_saved* saved,
                                                         const headgate_attention_incoming* incoming,
                                                         const headgate_attention_options* options);

/* --- keys in parts ------------------------------------------------------------------------------------------ */

/* Attention over keys in parts: what ring and context-parallel attention, and caches in several memories, are made of.
 *
 * Forward: headgate_narrow_keys gives the inputs of each range of keys; headgate_attention_forward without `gate`, and
 * with `sinks` in one part alone, makes attn_i and lse_i of each; headgate_attention_merge makes the whole of them and
 * applies the gate.
 *
 * Backward, either
 * (a) headgate_attention_merge_backward makes dattn_i, dlse_i and dgate of dy, and headgate_attention_backward of each
 *     range takes dattn_i and dlse_i as dy and dlse, its own attn_i and lse_i as y and lse, and no gate; or
 * (b) headgate_attention_backward of each range takes the gate, dy, dlse, and y, attn and lse of the whole: the weights
 *     exp(s - lse) and delta are then those of the whole, which no part has to know. dgate and dsinks depend on nothing
 *     else and come out whole from any range: ask for them once, with the sinks.
 * In both dk, dv and dbias of a range are final, and dq is the sum of the ranges'. */

/* *range = *inputs with keys begin ... end alone: k, v and the columns of bias and mask narrowed to them, and query
 * offsets relative to key `begin`, so that causality, window and ALiBi are as in the whole. `query_offsets` receives B
 * numbers, and so does `key_lengths`, which may be NULL where inputs->key_lengths is absent. The result points into the
 * memory of `inputs` and into these two, which must live as long as it is used. `sinks` and `gate` stay; take them out
 * where they must not count again. range->struct_size is set. 0 <= begin <= end <= S; packed batches are refused. */
HEADGATE_API headgate_status headgate_narrow_keys(headgate_attention_inputs* range,
                                                  const headgate_attention_inputs* inputs, int64_t begin, int64_t end,
                                                  int64_t* query_offsets, int64_t* key_lengths);

/* Attention over a part of the keys: `attn` and `lse` of a headgate_attention_forward without a gate. */
typedef struct headgate_merge_part {
  headgate_const_tensor attn; /* (B,Hq,T,Dv); f32, f64, bf16 or f16, the same for all parts */
  headgate_const_tensor lse;  /* (B,Hq,T,1), f32 or f64 */
} headgate_merge_part;

/* Gradients of a part to write; each may be absent. */
typedef struct headgate_merge_part_gradients {
  headgate_tensor attn; /* (B,Hq,T,Dv), dtype of the part's attn */
  headgate_tensor lse;  /* (B,Hq,T,1), f32 or f64 */
} headgate_merge_part_gradients;

/* lse = log sum_i exp(lse_i),  attn = sum_i exp(lse_i - lse) attn_i,  y = attn * g(z) or attn + g(z).
 *
 * Of `outputs`, weights must be absent and the others may be, but not all; without `gate` (NULL or absent) y is attn.
 * `gate` z is (B,Hq,T,1) or (B,Hq,T,Dv), of the parts' dtype or f32. Of `options`, which may be NULL, gate_fn, gate_op,
 * threads, target and backend count. A part whose lse is -inf in a row counts for nothing there, and its attn is not
 * read; where all are, attn is 0 and lse -inf. An lse of +inf marks a row that was not computed, and is refused. A sink
 * must be in the lse of one part alone. Sums in f32 or better, in the order of the parts; the same bits for any number
 * of threads. */
HEADGATE_API headgate_status headgate_attention_merge(const headgate_attention_outputs* outputs,
                                                      const headgate_merge_part* parts, size_t count,
                                                      const headgate_const_tensor* gate,
                                                      const headgate_attention_options* options);

/* Gradients of sum(dy*y) + sum(dlse*lse) of headgate_attention_merge. With w_i = exp(lse_i - lse):
 *   dattn = dy * g(z) (mul) or dy (add, or no gate);  dz = dy * attn * g'(z) (mul) or dy * g'(z) (add);
 *   dattn_i = w_i . dattn;  dlse_i = w_i . (dlse + sum_x dattn * (attn_i - attn)).
 * attn and lse are made again of the parts. `gradients`: `count` of them, one for each part; `dgate`, NULL or absent
 * where it is not wanted: shape and dtype of gate, summed over Dv when headwise. All are overwritten; 0 where a part
 * counts for nothing. */
HEADGATE_API headgate_status headgate_attention_merge_backward(const headgate_merge_part_gradients* gradients,
                                                               const headgate_tensor* dgate,
                                                               const headgate_merge_part* parts, size_t count,
                                                               const headgate_const_tensor* gate,
                                                               const headgate_attention_incoming* incoming,
                                                               const headgate_attention_options* options);

/* --- statistics --------------------------------------------------------------------------------------------- */

/* Which keys and queries statistics are of. */
typedef struct headgate_statistics_selection {
  size_t struct_size;
  headgate_const_tensor keys;    /* (1,1,1,J), i32 or i64, 0 <= j < S, any order, may repeat: those of key_weights. In a
                                    packed batch key j of each sequence; one that it does not have has weight 0 */
  headgate_const_tensor queries; /* (1,1,1,R), i32 or i64, 0 <= i < T, any order, may repeat: those of rows. In a packed
                                    batch rows of q */
  int64_t window;                /* W >= 0, read when a window share is asked for */
} headgate_statistics_selection;

#define HEADGATE_STATISTICS_SELECTION_INIT \
  { sizeof(headgate_statistics_selection), HEADGATE_ABSENT, HEADGATE_ABSENT, 0 }

/* What headgate_attention_statistics overwrites, of the weights P = exp(s - lse); each may be absent, and what is
 * absent is not computed. All are f32 or f64, topk_index i32 or i64. Means are over the queries of a sequence, rows
 * that see nothing among them; of a packed batch they have N, its sequences, in place of B, and so has
 * key_mass where its keys are paged. Else key_mass and rows have the S columns of all sequences there, rows 0 in those
 * of others, while first, key_weights and topk_index count keys within the query's own sequence. */
typedef struct headgate_attention_statistics_outputs {
  size_t struct_size;
  headgate_tensor row_max;           /* (B,Hq,T,1): max over j of P_ij; the largest score is log(row_max) + lse */
  headgate_tensor entropy;           /* (B,Hq,T,1): -sum of P_ij log P_ij, in nats; a sink's weight exp(sink - lse) is
                                        one more outcome of the sum */
  headgate_tensor first;             /* (B,Hq,T,1): P_i0 */
  headgate_tensor first_gated;       /* (B,Hq,T,1): P_i0 * mean over features of g(z_i), of a gate that multiplies */
  headgate_tensor window_share;      /* (B,Hq,T,1): sum of P_ij over |at_i - j| <= W */
  headgate_tensor key_weights;       /* (B,Hq,T,J): P_ij of the selection's keys */
  headgate_tensor mean_row_max;      /* (B,Hq,1,1) */
  headgate_tensor mean_entropy;      /* (B,Hq,1,1) */
  headgate_tensor mean_first;        /* (B,Hq,1,1) */
  headgate_tensor mean_first_gated;  /* (B,Hq,1,1) */
  headgate_tensor mean_window_share; /* (B,Hq,1,1) */
  headgate_tensor mean_key_weights;  /* (B,Hq,1,J) */
  headgate_tensor key_mass;          /* (B,Hq,1,S): sum over i of P_ij, what key j receives */
  headgate_tensor topk_index;        /* (B,Hq,T,K), 1 <= K <= 1024: the K keys of the largest scores, largest first, of
                                        equal ones the lower index first; -1 where fewer have a weight above 0 */
  headgate_tensor topk_weight;       /* (B,Hq,T,K): their weights; 0 beside -1 */
  headgate_tensor rows;              /* (B,Hq,R,S): P_ij of the selection's queries, 0 where hidden */
} headgate_attention_statistics_outputs;

#define HEADGATE_ATTENTION_STATISTICS_OUTPUTS_INIT                                                                     \
  {                                                                                                                    \
    sizeof(headgate_attention_statistics_outputs), HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, \
        HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT,          \
        HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT           \
  }

/* Statistics of the weights that a forward pass on the same inputs and options has used, without T*S memory.
 * `inputs`: v is not read and may be absent; gate is read for first_gated alone. `lse`: (B,Hq,T,1), f32 or f64, of that
 * forward pass; where it is infinite the row has no weights and its figures are 0, where it is NaN they are NaN, and
 * topk_index is -1. `selection` and `options` may be NULL. Deterministic: the
 * same bits for any number of threads. */
HEADGATE_API headgate_status headgate_attention_statistics(const headgate_attention_statistics_outputs* outputs,
                                                           const headgate_attention_inputs* inputs,
                                                           const headgate_const_tensor* lse,
                                                           const headgate_statistics_selection* selection,
                                                           const headgate_attention_options* options);

/* --- keys and values of past tokens -------------------------------------------------------------------------- */

/* Keys and values of tokens seen so far, for decoding: pages of tokens, and which sequence has which of them. One token
 * more of a sequence, its query last among those that the sequence holds:
 *
 *   headgate_cache_append(cache, &sequence, 1, &k, &v);               k (1,Hkv,1,D), v (1,Hkv,1,Dv)
 *   headgate_cache_batch(cache, &inputs, block_table, capacity, &key_length, &query_offset, &sequence, 1, 1);
 *   inputs.q = ...;
 *   headgate_attention_forward(&outputs, &inputs, &options);
 *
 * A contiguous cache, (B,Hkv,S,D) with a slot for each sequence, is one whose pages are as long as a sequence can get.
 * What fails changes nothing. A cache is not to be changed by one thread while another uses it. */
typedef struct headgate_cache headgate_cache;

/* The sizes of a cache. */
typedef struct headgate_cache_shape {
  size_t struct_size;
  int64_t kv_heads;     /* Hkv, at least 1 */
  int64_t head_dim;     /* D, 1 to 512 */
  int64_t value_dim;    /* Dv, 1 to 512 */
  int64_t page;         /* tokens of a page; 0: 16 */
  int64_t pages;        /* P, 0 to 2^31 - 1 */
  headgate_dtype dtype; /* f32 (also for 0), f64, bf16 or f16; i8: a scale for each token and head, max|x| / 127 */
  int32_t reserved;     /* 0 */
} headgate_cache_shape;

#define HEADGATE_CACHE_SHAPE_INIT \
  { sizeof(headgate_cache_shape), 0, 0, 0, 0, 0, HEADGATE_DTYPE_NONE, 0 }

/* The memory of a cache. */
typedef struct headgate_cache_tensors {
  size_t struct_size;
  headgate_tensor k;       /* (P,Hkv,page,D) */
  headgate_tensor v;       /* (P,Hkv,page,Dv), dtype of k */
  headgate_tensor k_scale; /* (P,Hkv,page,1), f32, with k and v of dtype i8; else absent */
  headgate_tensor v_scale; /* as k_scale */
} headgate_cache_tensors;

#define HEADGATE_CACHE_TENSORS_INIT \
  { sizeof(headgate_cache_tensors), HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT }

/* *bytes = what a cache of this shape takes. */
HEADGATE_API headgate_status headgate_cache_bytes(size_t* bytes, const headgate_cache_shape* shape);

/* *tensors, whose struct_size is set, become contiguous tensors of this shape in `memory`, headgate_cache_bytes bytes
 * aligned to 8. Writes nothing to the memory. */
HEADGATE_API headgate_status headgate_cache_place(headgate_cache_tensors* tensors, void* memory,
                                                  const headgate_cache_shape* shape);

/* *cache = a cache with memory of its own, or over memory of the caller's, which must outlive it: any strides.
 * headgate_cache_destroy frees it; of NULL it does nothing. */
HEADGATE_API headgate_status headgate_cache_create(headgate_cache** cache, const headgate_cache_shape* shape);
HEADGATE_API headgate_status headgate_cache_create_over(headgate_cache** cache, const headgate_cache_tensors* tensors);
HEADGATE_API void headgate_cache_destroy(headgate_cache* cache);

/* *sequence = the number of a new sequence without tokens. */
HEADGATE_API headgate_status headgate_cache_add_sequence(headgate_cache* cache, int64_t* sequence);

/* *made = the number of a sequence with the tokens of `sequence`. They share pages; the last one, if it is not full, is
 * copied by the first of them that appends. */
HEADGATE_API headgate_status headgate_cache_fork(headgate_cache* cache, int64_t* made, int64_t sequence);

/* Its number is free for another. */
HEADGATE_API headgate_status headgate_cache_remove_sequence(headgate_cache* cache, int64_t sequence);

/* T new tokens at the end of each of `count` different sequences: k (count,Hkv,T,D), v (count,Hkv,T,Dv), of one dtype,
 * f32, f64, bf16 or f16; converted to the cache's, or quantized. */
HEADGATE_API headgate_status headgate_cache_append(headgate_cache* cache, const int64_t* sequences, size_t count,
                                                   const headgate_const_tensor* k, const headgate_const_tensor* v);

/* Leaves the first `length` tokens that the sequence holds. */
HEADGATE_API headgate_status headgate_cache_truncate(headgate_cache* cache, int64_t sequence, int64_t length);

/* Drops whole pages that hold neither one of the first `sinks` tokens nor one of the last `window`. The tokens that
 * stay are keys 0 ... length - 1 from then on, while headgate_cache_position goes on counting those that were dropped:
 * keys and queries that RoPE has turned by it keep their true distances. All calls for a sequence must keep as many
 * pages of sinks. */
HEADGATE_API headgate_status headgate_cache_slide(headgate_cache* cache, int64_t sequence, int64_t sinks,
                                                  int64_t window);

/* The tokens that the sequence holds; the position of its next token, which counts dropped ones too. */
HEADGATE_API headgate_status headgate_cache_length(const headgate_cache* cache, int64_t* length, int64_t sequence);
HEADGATE_API headgate_status headgate_cache_position(const headgate_cache* cache, int64_t* position, int64_t sequence);

/* Pages that no sequence has. */
HEADGATE_API headgate_status headgate_cache_free_pages(const headgate_cache* cache, int64_t* pages);

/* *tensors, whose struct_size is set, become the cache's: valid until it grows, moves or is destroyed. */
HEADGATE_API headgate_status headgate_cache_get_tensors(const headgate_cache* cache, headgate_cache_tensors* tensors);

/* *entries = those of a block table of these sequences: `count` times the most pages that one of them has. */
HEADGATE_API headgate_status headgate_cache_table_entries(const headgate_cache* cache, size_t* entries,
                                                          const int64_t* sequences, size_t count);

/* The sequences as a batch B = count whose T queries are the last T tokens of each; T at most the shortest length. Sets
 * k, v, k_scale, v_scale, block_table, key_lengths and query_offsets of *inputs, whose struct_size is set. Their
 * numbers go to the caller's memory, which must live as long as *inputs is used: `block_table` has room for `capacity`
 * entries, at least headgate_cache_table_entries; `key_lengths` and `query_offsets` for `count`. For packed queries
 * (cu_seqlens_q), as many of each as they say, take T = 0 and clear query_offsets of *inputs. */
HEADGATE_API headgate_status headgate_cache_batch(const headgate_cache* cache, headgate_attention_inputs* inputs,
                                                  int32_t* block_table, size_t capacity, int64_t* key_lengths,
                                                  int64_t* query_offsets, const int64_t* sequences, size_t count,
                                                  int64_t T);

/* More pages, P = `pages` in all, in memory of the cache's own; for a cache that has such memory. Tensors and inputs
 * that point into the old one end. */
HEADGATE_API headgate_status headgate_cache_grow(headgate_cache* cache, int64_t pages);

/* Copies every page to larger tensors of the caller's, which differ in P alone, and goes on there. */
HEADGATE_API headgate_status headgate_cache_move_to(headgate_cache* cache, const headgate_cache_tensors* tensors);

/* --- linear attention --------------------------------------------------------------------------------------- */

/* Gated linear attention with the delta rule: the recurrence of Gated DeltaNet, exact. A head keeps a state S (D,Dv) in
 * place of keys and values. From its state S_(t-1), for one token after the other:
 *
 *   linear        S_t = S_(t-1) + k_t v_t^T
 *   gated         S_t = e^g_t S_(t-1) + k_t v_t^T
 *   delta         S_t = S_(t-1) + beta_t k_t (v_t - S_(t-1)^T k_t)^T
 *   gated_delta   S_t = e^g_t S_(t-1) + beta_t k_t (v_t - (e^g_t S_(t-1))^T k_t)^T
 *
 *   y_t = scale . S_t^T q_t
 *
 * with a decay g_t for the whole state of a head, or one for each of its D rows.
 *
 * Letters: B batch, T tokens, D head dim of q and k, Dv head dim of v and y; Hv heads of v, each with a state; Hk heads
 * of k; Hq heads of q; Ho heads of y, the larger of Hq and Hv. Hv is a multiple of Hk, and state h reads key head
 * h / (Hv/Hk). Where Hq is a multiple of Hv, head h of y reads query head h and state h / (Hq/Hv); where Hv is a
 * multiple of Hq, it reads query head h / (Hv/Hq) and state h.
 *
 * A packed batch holds N sequences one after the other, without padding: B is 1, and token i of sequence n is row
 * cu_seqlens[n] + i of all tensors that have a row for each token. Each sequence has a state of its own. Without
 * cu_seqlens, N is B. */

/* How a token changes the state. */
typedef int32_t headgate_linear_rule;
enum {
  HEADGATE_LINEAR_RULE_GATED_DELTA = 0,
  HEADGATE_LINEAR_RULE_DELTA = 1,
  HEADGATE_LINEAR_RULE_GATED = 2,
  HEADGATE_LINEAR_RULE_LINEAR = 3
};

/* Zeros are the defaults: gated_delta, 1/sqrt(D), no norms. A value that stands where its has_ field is 0 is
 * refused. */
typedef struct headgate_linear_attention_options {
  size_t struct_size;
  double scale; /* with has_scale 1; finite */
  /* With has_l2_norm 1: eps >= 0. q and k are divided by sqrt(sum x^2 + eps), their L2 norm over D, before anything
   * else. A row of zeros stays zero, and so do its gradients where eps is 0. */
  double l2_norm;
  int32_t has_scale;   /* 1: scale as given; 0: 1/sqrt(D) */
  int32_t has_l2_norm; /* 1: q and k are divided by their norms; 0: they are taken as they are */
  headgate_linear_rule rule;
  int32_t threads; /* as in headgate_attention_options, and so are target and backend */
  const char* target;
  const char* backend;
} headgate_linear_attention_options;

#define HEADGATE_LINEAR_ATTENTION_OPTIONS_INIT \
  { sizeof(headgate_linear_attention_options), 0.0, 0.0, 0, 0, HEADGATE_LINEAR_RULE_GATED_DELTA, 0, NULL, NULL }

/* What the operation reads. q, k and v are required and share one of f32, f64, bf16, f16. Any strides. */
typedef struct headgate_linear_attention_inputs {
  size_t struct_size;
  headgate_const_tensor q;          /* (B,Hq,T,D), 1 <= D <= 256 */
  headgate_const_tensor k;          /* (B,Hk,T,D) */
  headgate_const_tensor v;          /* (B,Hv,T,Dv), 1 <= Dv <= 256 */
  headgate_const_tensor decay;      /* g (B,Hv,T,1), or (B,Hv,T,D) for a decay of each feature; dtype of q, or f32; a
                                       natural logarithm, -inf to 0 in general. Only with the rules gated and
                                       gated_delta; absent means 0, no decay */
  headgate_const_tensor beta;       /* (B,Hv,T,1), or (B,1,T,1) for all heads; dtype of q, or f32. Only with the rules
                                       delta and gated_delta; absent means 1 */
  headgate_const_tensor state;      /* S_0 (N,Hv,D,Dv), f32 or f64; absent means 0 */
  headgate_const_tensor cu_seqlens; /* (1,1,1,N+1), i32 or i64: a packed batch. 0 first, never decreasing, T last */
} headgate_linear_attention_inputs;

#define HEADGATE_LINEAR_ATTENTION_INPUTS_INIT                                                                     \
  {                                                                                                               \
    sizeof(headgate_linear_attention_inputs), HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, \
        HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT                                                         \
  }

/* What the forward pass overwrites. y is required. */
typedef struct headgate_linear_attention_outputs {
  size_t struct_size;
  headgate_tensor y;     /* (B,Ho,T,Dv), dtype of q */
  headgate_tensor state; /* S_T (N,Hv,D,Dv), f32 or f64; may be the very tensor that the inputs have, to update it */
} headgate_linear_attention_outputs;

#define HEADGATE_LINEAR_ATTENTION_OUTPUTS_INIT \
  { sizeof(headgate_linear_attention_outputs), HEADGATE_ABSENT, HEADGATE_ABSENT }

/* The recurrence, for T >= 0 tokens: a prompt, a part of one that goes on from a state, or a single new token. States
 * and sums are f32 or better, whatever the storage. Deterministic: the same bits for any number of threads. Outputs
 * must not overlap inputs or each other, but for the state. `options` may be NULL for the defaults. */
HEADGATE_API headgate_status headgate_linear_attention_forward(const headgate_linear_attention_outputs* outputs,
                                                               const headgate_linear_attention_inputs* inputs,
                                                               const headgate_linear_attention_options* options);

/* Incoming gradients. dy is required; without dstate it counts as zero. */
typedef struct headgate_linear_attention_incoming {
  size_t struct_size;
  headgate_const_tensor dy;     /* (B,Ho,T,Dv), dtype of q */
  headgate_const_tensor dstate; /* of S_T (N,Hv,D,Dv), f32 or f64 */
} headgate_linear_attention_incoming;

#define HEADGATE_LINEAR_ATTENTION_INCOMING_INIT \
  { sizeof(headgate_linear_attention_incoming), HEADGATE_ABSENT, HEADGATE_ABSENT }

/* Gradients to write; each may be absent. All are overwritten, never added to. They have the shape and dtype of what
 * they are gradients of, and are summed over the heads that share it. */
typedef struct headgate_linear_attention_gradients {
  size_t struct_size;
  headgate_tensor dq;     /* (B,Hq,T,D) */
  headgate_tensor dk;     /* (B,Hk,T,D) */
  headgate_tensor dv;     /* (B,Hv,T,Dv) */
  headgate_tensor ddecay; /* (B,Hv,T,1|D) */
  headgate_tensor dbeta;  /* (B,Hv|1,T,1) */
  headgate_tensor dstate; /* of S_0 (N,Hv,D,Dv) */
} headgate_linear_attention_gradients;

#define HEADGATE_LINEAR_ATTENTION_GRADIENTS_INIT                                                                     \
  {                                                                                                                  \
    sizeof(headgate_linear_attention_gradients), HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, \
        HEADGATE_ABSENT, HEADGATE_ABSENT                                                                             \
  }

/* Gradients of sum(dy*y) + sum(dstate*S_T), from the inputs alone: the states are computed again. `inputs` and
 * `options` are those of the forward pass. Accumulated in f32 or better; deterministic. */
HEADGATE_API headgate_status headgate_linear_attention_backward(const headgate_linear_attention_gradients* gradients,
                                                                const headgate_linear_attention_inputs* inputs,
                                                                const headgate_linear_attention_incoming* incoming,
                                                                const headgate_linear_attention_options* options);

/* --- what linear attention attends to ------------------------------------------------------------------------ */

/* Linear attention is a sum of values with exact weights, which may be negative: y_t = sum over j <= t of a_tj v_j +
 * S_0^T r_t. For one t, start from r = scale . q_t; for j = t, t - 1, ..., 1: a_tj = beta_j (k_j . r), and r becomes
 * e^{g_j} (r - a_tj k_j). The rules linear and gated have no beta and subtract nothing. r_t is what is left of r. */

/* What headgate_linear_attention_weights overwrites; each may be absent. f32 or f64. */
typedef struct headgate_linear_attention_weights_outputs {
  size_t struct_size;
  headgate_tensor weights;     /* (B,Ho,R,T): a_tj of the chosen queries; 0 at later tokens, and at those of other
                                  sequences */
  headgate_tensor state_query; /* (B,Ho,R,D): r_t, which reads S_0 */
} headgate_linear_attention_weights_outputs;

#define HEADGATE_LINEAR_ATTENTION_WEIGHTS_OUTPUTS_INIT \
  { sizeof(headgate_linear_attention_weights_outputs), HEADGATE_ABSENT, HEADGATE_ABSENT }

/* The weights of chosen queries. `queries`: (1,1,1,R), i32 or i64, 0 <= t < T, in any order, may repeat; rows of q in a
 * packed batch. Required. `inputs` and `options` are those of the forward pass; nothing is read of v, which says how
 * many states there are, and of state. Deterministic, whatever other queries are chosen. */
HEADGATE_API headgate_status headgate_linear_attention_weights(const headgate_linear_attention_weights_outputs* outputs,
                                                               const headgate_linear_attention_inputs* inputs,
                                                               const headgate_const_tensor* queries,
                                                               const headgate_linear_attention_options* options);

/* What headgate_linear_attention_statistics overwrites; each may be absent, and what is absent is not computed. f32 or
 * f64. N: the sequences of a packed batch, else B. Quotients by a sum of 0 are 0, and so are means of no queries. */
typedef struct headgate_linear_attention_statistics_outputs {
  size_t struct_size;
  headgate_tensor first;             /* (B,Ho,T,1): a_t1 */
  headgate_tensor first_share;       /* (B,Ho,T,1): |a_t1| / sum over j of |a_tj| */
  headgate_tensor reach;             /* (B,Ho,T,1): sum of |a_tj| (t - j) / sum of |a_tj| */
  headgate_tensor absolute_sum;      /* (B,Ho,T,1): sum of |a_tj| */
  headgate_tensor weight_sum;        /* (B,Ho,T,1): sum of a_tj */
  headgate_tensor mean_first;        /* (N,Ho,1,1): means over the queries of a sequence */
  headgate_tensor mean_first_share;  /* (N,Ho,1,1) */
  headgate_tensor mean_reach;        /* (N,Ho,1,1) */
  headgate_tensor mean_absolute_sum; /* (N,Ho,1,1) */
  headgate_tensor mean_weight_sum;   /* (N,Ho,1,1) */
  headgate_tensor mean_decay;        /* (N,Hv,1,1): mean of e^g over tokens, and over features where each has a decay */
  headgate_tensor mean_beta;         /* (N,Hv,1,1): mean of beta over tokens */
  headgate_tensor half_life;      /* (N,Hv,1,1): ln 2 / -(mean of g), in tokens; inf where that mean is not negative */
  headgate_tensor effective_rank; /* (N,Hv,1,1): |S|^4 / |S^T S|^2 of S_T, in Frobenius norms: the participation
                                     ratio of its singular values, from 1 to min(D,Dv); 0 where S_T is 0 */
  headgate_tensor state_norm;     /* (N,Hv,1,1): the Frobenius norm of S_T */
} headgate_linear_attention_statistics_outputs;

#define HEADGATE_LINEAR_ATTENTION_STATISTICS_OUTPUTS_INIT                                                     \
  {                                                                                                           \
    sizeof(headgate_linear_attention_statistics_outputs), HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT,  \
        HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, \
        HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT  \
  }

/* Figures of the weights of all queries in O(T) memory beside S_T. `inputs` and `options` are those of the forward
 * pass; v and state are read for effective_rank and state_norm alone. Deterministic: the same bits for any number of
 * threads. */
HEADGATE_API headgate_status headgate_linear_attention_statistics(
    const headgate_linear_attention_statistics_outputs* outputs, const headgate_linear_attention_inputs* inputs,
    const headgate_linear_attention_options* options);

/* --- runtime ------------------------------------------------------------------------------------------------ */

/* Returns the version of the library that is loaded, "MAJOR.MINOR.PATCH"; HEADGATE_VERSION is the header's. */
HEADGATE_API const char* headgate_version(void);

/* Vector targets, best first: "avx3" (AVX-512), "avx2", "sse4", "neon", "emu128" or "scalar". *count becomes the number
 * of targets, and names[0 .. capacity) receive as many of their names as fit; those live as long as the library.
 * `names` may be NULL when capacity is 0. */
HEADGATE_API headgate_status headgate_compiled_targets(const char** names, size_t capacity, size_t* count);

/* Those of them that this CPU can run. */
HEADGATE_API headgate_status headgate_supported_targets(const char** names, size_t capacity, size_t* count);

/* The target that kernels run on now: the best, or the one that the environment variable HEADGATE_ISA names.
 * HEADGATE_INVALID_ARGUMENT if that cannot run here. *name lives as long as the library. */
HEADGATE_API headgate_status headgate_active_target(const char** name);

/* Makes `name` the target of every later call in this process; NULL or "" returns to the default choice.
 * HEADGATE_INVALID_ARGUMENT if it is not a supported target. Not to be called while a kernel runs. */
HEADGATE_API headgate_status headgate_set_target(const char* name);

/* What this CPU and build have for HEADGATE_PRECISION_NATIVE16, best first, beside the vector target "avx3" alone:
 * "amx_bf16", "avx512_bf16", or nothing. The list is handed out as that of headgate_supported_targets. */
HEADGATE_API headgate_status headgate_supported_native16_products(const char** names, size_t capacity, size_t* count);

/* The one that native16 uses now on the active target: amx_bf16 where the CPU has it, avx512_bf16 on AMD's CPUs since
 * Zen 4, or what headgate_set_native16_products chose; "" where there is none, and native16 computes as exact does.
 * *name lives as long as the library. */
HEADGATE_API headgate_status headgate_native16_products(const char** name);

/* Makes native16 use `name` in every later call of this process, and exact calls avx512_bf16 alone, where nothing is
 * lost by it; NULL or "" returns to the default choice.
 * HEADGATE_INVALID_ARGUMENT if it is not supported. Not to be called while a kernel runs. */
HEADGATE_API headgate_status headgate_set_native16_products(const char* name);

/* Implementations of the operation in this build, best first: "cpu". A call runs on the first that can compute it.
 * The list is handed out as that of the targets is. */
HEADGATE_API headgate_status headgate_supported_backends(const char** names, size_t capacity, size_t* count);

/* Makes `name` the only backend of every later call in this process; NULL or "" returns to the choice by call.
 * HEADGATE_INVALID_ARGUMENT if it is not one of them. Not to be called while a kernel runs. */
HEADGATE_API headgate_status headgate_set_backend(const char* name);

/* Frees the scratch memory, at most 32 MiB, that the calling thread keeps from its last call for its next one. */
HEADGATE_API void headgate_release_workspace(void);

/* Threads that a call uses when its options say 0; at least 1. */
HEADGATE_API int32_t headgate_default_threads(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* HEADGATE_HEADGATE_H_ */
