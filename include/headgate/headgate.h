/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADGATE_HEADGATE_H_
#define HEADGATE_HEADGATE_H_

#include <stddef.h>
#include <stdint.h>

#include "headgate/export.h"
#include "headgate/linear_attention.h" /* IWYU pragma: export */
#include "headgate/types.h"            /* IWYU pragma: export */
#include "headgate/version.h"

/** @file
 * Gated attention (arXiv 2505.06708), exact, in O(T) memory: the C API, C99. It is the C++ API of
 * headgate/attention.hpp, merge.hpp, statistics.hpp, cache.hpp and runtime.hpp argument for argument, and computes the
 * same bits. types.h has statuses and tensors; linear_attention.h has linear attention, the short convolution and the
 * gated norm.
 *
 *     s    = softcap(scale . q k^T) - slope_h . |at_i - j| + bias             softcap(x) = c . tanh(x / c)
 *     lse  = log( sum over visible j of exp(s_j), + exp(sink_h) )             natural logarithm
 *     o    = sum over visible j of exp(s_j - lse) v_j
 *     y    = o * g(z)   or   o + g(z)                                         z: raw gate logits
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
 *     headgate_attention_inputs inputs = HEADGATE_ATTENTION_INPUTS_INIT;
 *     inputs.q = headgate_make_const_tensor(q, HEADGATE_DTYPE_F32, B, Hq, T, D);
 *     headgate_attention_options options = {.struct_size = sizeof options, .causality = HEADGATE_CAUSALITY_CAUSAL};
 *
 * Later versions add fields at the end, and zero there will mean what their absence meant. So a library takes the
 * smaller structs of every older version, and a larger one of a newer version as long as the bytes it does not know
 * are zero; if not, or if struct_size fits no version, the call returns HEADGATE_INVALID_ARGUMENT. Before 1.0 a minor
 * version may change structs and constants otherwise, and has a library name (soname) of its own. 0.2 did: a window
 * is read when has_window is 1, and the gate function 0 is the default.
 *
 * Every function may be called from several threads at once, except where it says otherwise, and in a child of fork().
 * No C++ exception leaves the library, and it does not end the process: where the system has no more threads to give, a
 * call runs on fewer. It prints only if the environment variable HEADGATE_VERBOSE is set: a line for each call, on
 * stderr.
 */

#ifdef __cplusplus
extern "C" {
#endif

/* --- options ------------------------------------------------------------------------------------------------ */

/** How g(z) meets the attention output o. */
typedef int32_t headgate_gate_op;
enum {
  HEADGATE_GATE_OP_MUL = 0, /**< y = o * g(z) */
  HEADGATE_GATE_OP_ADD = 1  /**< y = o + g(z) */
};

/** Which keys a query sees by its position. */
typedef int32_t headgate_causality;
enum {
  HEADGATE_CAUSALITY_NONE = 0,
  HEADGATE_CAUSALITY_CAUSAL = 1 /**< key j is visible to query i iff j <= at_i */
};

/** What products are made of. NATIVE16, for bf16 q, k and v: bf16 numbers with f32 sums, in the instructions of the CPU
 * (headgate_native16_products); weights, and backward dy * g and ds, are rounded to bf16 before they are multiplied. It
 * permits this where it is faster: on CPUs without it, and for what its kernels leave out (weights, gate_threshold,
 * dropout, int8 k and v, few queries, dbias), calls compute as EXACT does. */
typedef int32_t headgate_precision;
enum {
  HEADGATE_PRECISION_EXACT = 0,   /**< f32 numbers (f64 for f64), or bf16 numbers where nothing is lost by it */
  HEADGATE_PRECISION_NATIVE16 = 1 /**< q must be bf16 */
};

/** Zeros are the defaults: 1/sqrt(D), no cap, no window, not causal, sigmoid, multiplied. A value that stands where its
 * has_ field is 0 is refused, so that none is passed over unnoticed. */
typedef struct headgate_attention_options {
  size_t struct_size;
  double scale;   /**< with has_scale 1; finite */
  double softcap; /**< c > 0; 0 for no cap */
  /** With has_window 1: key j is visible to query i iff at_i - window_left <= j <= at_i + window_right; -1 for no limit
   * on that side. Below -1 the window lies beside the query: 9 and -3 show keys at_i - 9 to at_i - 3. */
  int64_t window_left;
  int64_t window_right;
  int32_t has_scale;            /**< 1: scale as given; 0: 1/sqrt(D) */
  int32_t has_window;           /**< 1: the window as given; 0: no window */
  headgate_causality causality; /**< combines with the window by "and" */
  headgate_gate_fn gate_fn;     /**< applied when `gate` is present */
  headgate_gate_op gate_op;
  int32_t threads;     /**< 0: at most headgate_default_threads(). Others: at most 4 a processor, or 16. Always the same
                          bits. */
  const char* target;  /**< a name of headgate_supported_targets(); NULL or "": headgate_active_target() */
  const char* backend; /**< a name of headgate_supported_backends(); NULL or "": the one that headgate_set_backend()
                          forces, else the first that can compute the call */
  /** tau > 0, finite; 0: off. A row (a query of a head) whose gate is small, |g(z)| <= tau in every feature, is closed:
   * it is not computed, and its part of y is 0, within tau * max |v| over the keys that it sees. Closed rows cost next
   * to nothing, and keys and values that no open row sees are not read. Forward only, with a gate that multiplies. A
   * gate within rounding of tau may fall on either side. */
  double gate_threshold;
  headgate_precision precision;
  int32_t reserved; /**< 0 */
  /** In [0, 1): each softmax weight becomes 0 with this probability, else weight / (1 - dropout). A function of
   * dropout_seed and of the weight's sequence, query head, query and key alone; the backward pass needs both again. */
  double dropout;
  int64_t dropout_seed;
} headgate_attention_options;

#define HEADGATE_ATTENTION_OPTIONS_INIT                                                                          \
  {                                                                                                              \
    sizeof(headgate_attention_options), 0.0, 0.0, 0, 0, 0, 0, HEADGATE_CAUSALITY_NONE, HEADGATE_GATE_FN_DEFAULT, \
        HEADGATE_GATE_OP_MUL, 0, NULL, NULL, 0.0, HEADGATE_PRECISION_EXACT, 0, 0.0, 0                            \
  }

/* --- forward ------------------------------------------------------------------------------------------------ */

/** What the operation reads. q, k and v are required and share one of f32, f64, bf16, f16, or k and v are i8 with
 * scales; the rest may be absent. Any strides. Visibility by causality, window, mask and key_lengths combines by "and".
 * Query i stands at key position at_i = i + S - T, or query_offsets[b] + i; key_lengths does not move it. */
typedef struct headgate_attention_inputs {
  size_t struct_size;
  headgate_const_tensor q;             /**< (B,Hq,T,D), 1 <= D <= 512 */
  headgate_const_tensor k;             /**< (B,Hkv,S,D); with a block table (P,Hkv,page,D) */
  headgate_const_tensor v;             /**< (B,Hkv,S,Dv), 1 <= Dv <= 512; with a block table (P,Hkv,page,Dv) */
  headgate_const_tensor gate;          /**< z (B,Hq,T,1) headwise or (B,Hq,T,Dv) elementwise; dtype of q, or f32 */
  headgate_const_tensor bias;          /**< (B|1,Hq|1,T|1,S); dtype of q, or f32; -inf hides the key; +inf and NaN give
                                          NaN rows */
  headgate_const_tensor mask;          /**< (B|1,Hq|1,T|1,S), bool, true = visible */
  headgate_const_tensor key_lengths;   /**< (1,1,1,B), i32 or i64, 0 <= n <= S: keys >= n are hidden, and neither read
                                          nor aligned to */
  headgate_const_tensor alibi_slopes;  /**< (1,1,1,Hq) or (1,1,B,Hq), packed (1,1,N,Hq), f32 or f64, finite */
  headgate_const_tensor sinks;         /**< (1,1,1,Hq), f32 or f64: a logit, finite or -inf, that joins the denominator
                                          without a value */
  headgate_const_tensor query_offsets; /**< (1,1,1,B), i32 or i64, within +-2^60: at_0, the key position of the first
                                          query of each sequence. With T new tokens at the end of n keys in a cache of
                                          S slots: key_lengths n, query_offsets n - T */
  /** (1,1,1,N+1), i32 or i64, both, or cu_seqlens_q and block_table: a packed batch (above). 0 first, never decreasing
   * (equal: an empty sequence), T and S last. key_lengths (n <= S_n) and query_offsets then have N entries; bias, mask
   * and weights keep their shapes over all T rows and S columns, of which those of another sequence are not read, and
   * written as 0. A sequence gets the same bits as by itself. */
  headgate_const_tensor cu_seqlens_q;
  headgate_const_tensor cu_seqlens_k;
  headgate_const_tensor block_table; /**< (1,1,B|N,M), i32; forward only. k and v are P pages of `page` tokens, and key
                                        j of sequence b is row j % page of page e = block_table[b][j / page], 0 <= e <
                                        P; sequences may share pages. S = M*page; key_lengths is required. Entries and
                                        pages of no key before the length are not read. Of a packed batch only the
                                        queries are packed: bias, mask and weights have the S columns of a query's own
                                        sequence, and without query_offsets the last query of a sequence stands at the
                                        last of its key_lengths[n] keys */
  headgate_const_tensor k_scale;     /**< (B,Hkv,S,1), with a block table (P,Hkv,page,1), f32; forward only. Required
                                        with k and v of dtype i8, else absent: key j is k_scale[j]*k[j], its value
                                        v_scale[j]*v[j]. q is then of any of its dtypes, which y has */
  headgate_const_tensor v_scale;     /**< as k_scale */
} headgate_attention_inputs;

#define HEADGATE_ATTENTION_INPUTS_INIT                                                                        \
  {                                                                                                           \
    sizeof(headgate_attention_inputs), HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT,    \
        HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, \
        HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT                   \
  }

/** What the forward pass overwrites. y is required; the rest may be absent. */
typedef struct headgate_attention_outputs {
  size_t struct_size;
  headgate_tensor y;       /**< (B,Hq,T,Dv), dtype of q */
  headgate_tensor lse;     /**< (B,Hq,T,1), f32 or f64, natural log, sink included; -inf for a row that sees nothing */
  headgate_tensor attn;    /**< o (B,Hq,T,Dv), dtype of q: the output before the gate */
  headgate_tensor weights; /**< exp(s - lse) (B,Hq,T,S), dtype of q: T*S large, for small problems */
} headgate_attention_outputs;

#define HEADGATE_ATTENTION_OUTPUTS_INIT \
  { sizeof(headgate_attention_outputs), HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT }

/** y = gate(z) * softmax(scale . q k^T + bias, mask) v.
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

/** What the backward pass needs of the forward pass: y and lse, and
 *
 * - with silu or identity, multiplied (g may be 0: o is lost in y), attn for dgate;
 * - with any gate that is added, attn if at hand: it spares the cancellation in y - g(z). */
typedef struct headgate_attention_saved {
  size_t struct_size;
  headgate_const_tensor y;    /**< (B,Hq,T,Dv) */
  headgate_const_tensor lse;  /**< (B,Hq,T,1), f32 or f64, sink included */
  headgate_const_tensor attn; /**< (B,Hq,T,Dv) */
} headgate_attention_saved;

#define HEADGATE_ATTENTION_SAVED_INIT \
  { sizeof(headgate_attention_saved), HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT }

/** Incoming gradients. dy is required; without dlse it counts as zero. */
typedef struct headgate_attention_incoming {
  size_t struct_size;
  headgate_const_tensor dy;   /**< (B,Hq,T,Dv), dtype of q */
  headgate_const_tensor dlse; /**< (B,Hq,T,1), f32 or f64 */
} headgate_attention_incoming;

#define HEADGATE_ATTENTION_INCOMING_INIT \
  { sizeof(headgate_attention_incoming), HEADGATE_ABSENT, HEADGATE_ABSENT }

/** Gradients to write; each may be absent. All are overwritten, never added to. */
typedef struct headgate_attention_gradients {
  size_t struct_size;
  headgate_tensor dq;     /**< (B,Hq,T,D), dtype of q */
  headgate_tensor dk;     /**< (B,Hkv,S,D), dtype of q, summed over the query heads of the group */
  headgate_tensor dv;     /**< (B,Hkv,S,Dv), dtype of q */
  headgate_tensor dgate;  /**< shape and dtype of gate; summed over Dv when headwise; refused without a gate function */
  headgate_tensor dbias;  /**< shape and dtype of bias; summed over its broadcast dimensions */
  headgate_tensor dsinks; /**< (1,1,1,Hq), dtype of sinks */
} headgate_attention_gradients;

#define HEADGATE_ATTENTION_GRADIENTS_INIT                                                                     \
  {                                                                                                           \
    sizeof(headgate_attention_gradients), HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, \
        HEADGATE_ABSENT, HEADGATE_ABSENT                                                                      \
  }

/** Gradients of sum(dy*y) + sum(dlse*lse). With P = exp(s - lse):
 *
 *     do = dy * g(z) (mul) or dy (add);  delta = rowsum(do * o) = rowsum(dy * y) for mul;
 *     ds = P * (do v^T - delta + dlse);  dq = scale . ds' k;  dk = scale . ds'^T q;  dv = P^T do;  dbias = ds;
 *     dsink = -exp(sink - lse)(delta - dlse);  dz = dy * o * g'(z), for sigmoid dy * y * (1 - g);
 *
 * with ds' = ds * (1 - tanh^2) under a softcap and ds otherwise.
 * `inputs` and `options` are those of the forward pass. Refused are a gate_threshold above 0 and an lse of +inf: a row
 * that was not computed has no gradients. Gradients accumulate in f32 or better; deterministic. */
HEADGATE_API headgate_status headgate_attention_backward(const headgate_attention_gradients* gradients,
                                                         const headgate_attention_inputs* inputs,
                                                         const headgate_attention_saved* saved,
                                                         const headgate_attention_incoming* incoming,
                                                         const headgate_attention_options* options);

/* --- keys in parts ------------------------------------------------------------------------------------------ */

/** @file
 *
 * **Keys in parts.** Attention over keys in parts: what ring and context-parallel attention, and caches in several
 * memories, are made of.
 *
 * Forward: headgate_narrow_keys gives the inputs of each range of keys; headgate_attention_forward without `gate`, and
 * with `sinks` in one part alone, makes attn_i and lse_i of each; headgate_attention_merge makes the whole of them and
 * applies the gate.
 *
 * Backward, either
 *
 * - headgate_attention_merge_backward makes dattn_i, dlse_i and dgate of dy, and headgate_attention_backward of each
 *   range takes dattn_i and dlse_i as dy and dlse, its own attn_i and lse_i as y and lse, and no gate; or
 * - headgate_attention_backward of each range takes the gate, dy, dlse, and y, attn and lse of the whole: the weights
 *   exp(s - lse) and delta are then those of the whole, which no part has to know. dgate and dsinks depend on nothing
 *   else and come out whole from any range: ask for them once, with the sinks.
 *
 * In both dk, dv and dbias of a range are final, and dq is the sum of the ranges'. */

/** `*range` = `*inputs` with keys begin ... end alone: k, v and the columns of bias and mask narrowed to them, and
 * query offsets relative to key `begin`, so that causality, window and ALiBi are as in the whole. `query_offsets`
 * receives B numbers, and so does `key_lengths`, which may be NULL where inputs->key_lengths is absent. The result
 * points into the memory of `inputs` and into these two, which must live as long as it is used. `sinks` and `gate`
 * stay; take them out where they must not count again. The caller sets range->struct_size, as _INIT does: no byte
 * beyond it is written, and a struct that is too small for the range is refused. `range` may be `inputs`. 0 <= begin <=
 * end <= S; packed batches are refused. */
HEADGATE_API headgate_status headgate_narrow_keys(headgate_attention_inputs* range,
                                                  const headgate_attention_inputs* inputs, int64_t begin, int64_t end,
                                                  int64_t* query_offsets, int64_t* key_lengths);

/** Attention over a part of the keys: `attn` and `lse` of a headgate_attention_forward without a gate. */
typedef struct headgate_merge_part {
  headgate_const_tensor attn; /**< (B,Hq,T,Dv); f32, f64, bf16 or f16, the same for all parts */
  headgate_const_tensor lse;  /**< (B,Hq,T,1), f32 or f64 */
} headgate_merge_part;

/** Gradients of a part to write; each may be absent. */
typedef struct headgate_merge_part_gradients {
  headgate_tensor attn; /**< (B,Hq,T,Dv), dtype of the part's attn */
  headgate_tensor lse;  /**< (B,Hq,T,1), f32 or f64 */
} headgate_merge_part_gradients;

/** lse = log sum_i exp(lse_i),  attn = sum_i exp(lse_i - lse) attn_i,  y = attn * g(z) or attn + g(z).
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

/** Gradients of sum(dy*y) + sum(dlse*lse) of headgate_attention_merge. With w_i = exp(lse_i - lse):
 *
 *     dattn = dy * g(z) (mul) or dy (add, or no gate);  dz = dy * attn * g'(z) (mul) or dy * g'(z) (add);
 *     dattn_i = w_i . dattn;  dlse_i = w_i . (dlse + sum_x dattn * (attn_i - attn)).
 *
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

/** Which keys and queries statistics are of. */
typedef struct headgate_statistics_selection {
  size_t struct_size;
  headgate_const_tensor keys; /**< (1,1,1,J), i32 or i64, 0 <= j < S, any order, may repeat: those of key_weights. In a
                                 packed batch key j of each sequence; one that it does not have has weight 0 */
  headgate_const_tensor queries; /**< (1,1,1,R), i32 or i64, 0 <= i < T, any order, may repeat: those of rows. In a
                                    packed batch rows of q */
  int64_t window;                /**< W >= 0, read when a window share is asked for */
} headgate_statistics_selection;

#define HEADGATE_STATISTICS_SELECTION_INIT \
  { sizeof(headgate_statistics_selection), HEADGATE_ABSENT, HEADGATE_ABSENT, 0 }

/** What headgate_attention_statistics overwrites, of the weights P = exp(s - lse); each may be absent, and what is
 * absent is not computed. All are f32 or f64, topk_index i32 or i64. Means are over the queries of a sequence, rows
 * that see nothing among them, but under a causal mask the query at the first key, which sees itself alone. Of a packed
 * batch they have N, its sequences, in place of B, and so has key_mass where its keys are paged. Else key_mass and
 * rows have the S columns of all sequences there, rows 0 in those of others, while first, key_weights and topk_index
 * count keys within the query's own sequence. */
typedef struct headgate_attention_statistics_outputs {
  size_t struct_size;
  headgate_tensor row_max;           /**< (B,Hq,T,1): max over j of P_ij; the largest score is log(row_max) + lse */
  headgate_tensor entropy;           /**< (B,Hq,T,1): -sum of P_ij log P_ij, in nats; a sink's weight exp(sink - lse) is
                                        one more outcome of the sum */
  headgate_tensor first;             /**< (B,Hq,T,1): P_i0 */
  headgate_tensor first_gated;       /**< (B,Hq,T,1): P_i0 * mean over features of g(z_i), of a gate that multiplies */
  headgate_tensor window_share;      /**< (B,Hq,T,1): sum of P_ij over |at_i - j| <= W */
  headgate_tensor key_weights;       /**< (B,Hq,T,J): P_ij of the selection's keys */
  headgate_tensor mean_row_max;      /**< (B,Hq,1,1) */
  headgate_tensor mean_entropy;      /**< (B,Hq,1,1) */
  headgate_tensor mean_first;        /**< (B,Hq,1,1) */
  headgate_tensor mean_first_gated;  /**< (B,Hq,1,1) */
  headgate_tensor mean_window_share; /**< (B,Hq,1,1) */
  headgate_tensor mean_key_weights;  /**< (B,Hq,1,J) */
  headgate_tensor key_mass;          /**< (B,Hq,1,S): sum over i of P_ij, what key j receives */
  headgate_tensor topk_index;  /**< (B,Hq,T,K), 1 <= K <= 1024: the K keys of the largest scores, largest first, of
                                  equal ones the lower index first; -1 where fewer have a weight above 0 */
  headgate_tensor topk_weight; /**< (B,Hq,T,K): their weights; 0 beside -1 */
  headgate_tensor rows;        /**< (B,Hq,R,S): P_ij of the selection's queries, 0 where hidden */
} headgate_attention_statistics_outputs;

#define HEADGATE_ATTENTION_STATISTICS_OUTPUTS_INIT                                                                     \
  {                                                                                                                    \
    sizeof(headgate_attention_statistics_outputs), HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, \
        HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT,          \
        HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT           \
  }

/** Statistics of the weights that a forward pass on the same inputs and options has used, without T*S memory.
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

/** Keys and values of tokens seen so far, for decoding: pages of tokens, and which sequence has which of them. One
 * token more of a sequence, its query last among those that the sequence holds:
 *
 *     headgate_cache_append(cache, &sequence, 1, &k, &v);               k (1,Hkv,1,D), v (1,Hkv,1,Dv)
 *     headgate_cache_batch(cache, &inputs, block_table, capacity, &key_length, &query_offset, &sequence, 1, 1);
 *     inputs.q = ...;
 *     headgate_attention_forward(&outputs, &inputs, &options);
 *
 * A contiguous cache, (B,Hkv,S,D) with a slot for each sequence, is one whose pages are as long as a sequence can get.
 * What fails changes nothing. A cache is not to be changed by one thread while another uses it. */
typedef struct headgate_cache headgate_cache;

/** The sizes of a cache. */
typedef struct headgate_cache_shape {
  size_t struct_size;
  int64_t kv_heads;     /**< Hkv, at least 1 */
  int64_t head_dim;     /**< D, 1 to 512 */
  int64_t value_dim;    /**< Dv, 1 to 512 */
  int64_t page;         /**< tokens of a page; 0: 16 */
  int64_t pages;        /**< P, 0 to 2^31 - 1 */
  headgate_dtype dtype; /**< f32 (also for 0), f64, bf16 or f16; i8: a scale for each token and head, max|x| / 127 */
  int32_t reserved;     /**< 0 */
} headgate_cache_shape;

#define HEADGATE_CACHE_SHAPE_INIT \
  { sizeof(headgate_cache_shape), 0, 0, 0, 0, 0, HEADGATE_DTYPE_NONE, 0 }

/** The memory of a cache. */
typedef struct headgate_cache_tensors {
  size_t struct_size;
  headgate_tensor k;       /**< (P,Hkv,page,D) */
  headgate_tensor v;       /**< (P,Hkv,page,Dv), dtype of k */
  headgate_tensor k_scale; /**< (P,Hkv,page,1), f32, with k and v of dtype i8; else absent */
  headgate_tensor v_scale; /**< as k_scale */
} headgate_cache_tensors;

#define HEADGATE_CACHE_TENSORS_INIT \
  { sizeof(headgate_cache_tensors), HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT }

/** `*bytes` = what a cache of this shape takes. */
HEADGATE_API headgate_status headgate_cache_bytes(size_t* bytes, const headgate_cache_shape* shape);

/** `*tensors`, whose struct_size is set, become contiguous tensors of this shape in `memory`, headgate_cache_bytes
 * bytes aligned to 8. Writes nothing to the memory. */
HEADGATE_API headgate_status headgate_cache_place(headgate_cache_tensors* tensors, void* memory,
                                                  const headgate_cache_shape* shape);

/** `*cache` = a cache with memory of its own, or over memory of the caller's, which must outlive it: any strides.
 * headgate_cache_destroy frees it; of NULL it does nothing. */
HEADGATE_API headgate_status headgate_cache_create(headgate_cache** cache, const headgate_cache_shape* shape);
HEADGATE_API headgate_status headgate_cache_create_over(headgate_cache** cache, const headgate_cache_tensors* tensors);
HEADGATE_API void headgate_cache_destroy(headgate_cache* cache);

/** `*sequence` = the number of a new sequence without tokens. */
HEADGATE_API headgate_status headgate_cache_add_sequence(headgate_cache* cache, int64_t* sequence);

/** `*made` = the number of a sequence with the tokens of `sequence`. They share pages; the last one, if it is not full,
 * is copied by the first of them that appends. */
HEADGATE_API headgate_status headgate_cache_fork(headgate_cache* cache, int64_t* made, int64_t sequence);

/** Its number is free for another. */
HEADGATE_API headgate_status headgate_cache_remove_sequence(headgate_cache* cache, int64_t sequence);

/** T new tokens at the end of each of `count` different sequences: k (count,Hkv,T,D), v (count,Hkv,T,Dv), of one dtype,
 * f32, f64, bf16 or f16; converted to the cache's, or quantized. */
HEADGATE_API headgate_status headgate_cache_append(headgate_cache* cache, const int64_t* sequences, size_t count,
                                                   const headgate_const_tensor* k, const headgate_const_tensor* v);

/** Leaves the first `length` tokens that the sequence holds. */
HEADGATE_API headgate_status headgate_cache_truncate(headgate_cache* cache, int64_t sequence, int64_t length);

/** Drops whole pages that hold neither one of the first `sinks` tokens nor one of the last `window`. The tokens that
 * stay are keys 0 ... length - 1 from then on, while headgate_cache_position goes on counting those that were dropped:
 * keys and queries that RoPE has turned by it keep their true distances. All calls for a sequence must keep as many
 * pages of sinks. */
HEADGATE_API headgate_status headgate_cache_slide(headgate_cache* cache, int64_t sequence, int64_t sinks,
                                                  int64_t window);

/** The tokens that the sequence holds; the position of its next token, which counts dropped ones too. */
HEADGATE_API headgate_status headgate_cache_length(const headgate_cache* cache, int64_t* length, int64_t sequence);
HEADGATE_API headgate_status headgate_cache_position(const headgate_cache* cache, int64_t* position, int64_t sequence);

/** Pages that no sequence has. */
HEADGATE_API headgate_status headgate_cache_free_pages(const headgate_cache* cache, int64_t* pages);

/** `*tensors`, whose struct_size is set, become the cache's: valid until it grows, moves or is destroyed. */
HEADGATE_API headgate_status headgate_cache_get_tensors(const headgate_cache* cache, headgate_cache_tensors* tensors);

/** `*entries` = those of a block table of these sequences: `count` times the most pages that one of them has. */
HEADGATE_API headgate_status headgate_cache_table_entries(const headgate_cache* cache, size_t* entries,
                                                          const int64_t* sequences, size_t count);

/** The sequences as a batch B = count whose T queries are the last T tokens of each; T at most the shortest length.
 * Sets k, v, k_scale, v_scale, block_table, key_lengths and query_offsets of `*inputs`, whose struct_size is set. Their
 * numbers go to the caller's memory, which must live as long as `*inputs` is used: `block_table` has room for
 * `capacity` entries, at least headgate_cache_table_entries; `key_lengths` and `query_offsets` for `count`. For packed
 * queries (cu_seqlens_q), as many of each as they say, take T = 0 and clear query_offsets of `*inputs`. */
HEADGATE_API headgate_status headgate_cache_batch(const headgate_cache* cache, headgate_attention_inputs* inputs,
                                                  int32_t* block_table, size_t capacity, int64_t* key_lengths,
                                                  int64_t* query_offsets, const int64_t* sequences, size_t count,
                                                  int64_t T);

/** More pages, P = `pages` in all, in memory of the cache's own; for a cache that has such memory. Tensors and inputs
 * that point into the old one end. */
HEADGATE_API headgate_status headgate_cache_grow(headgate_cache* cache, int64_t pages);

/** Copies every page to larger tensors of the caller's, which differ in P alone, and goes on there. Frees the memory of
 * the cache's own, if it has some. */
HEADGATE_API headgate_status headgate_cache_move_to(headgate_cache* cache, const headgate_cache_tensors* tensors);

/* --- runtime ------------------------------------------------------------------------------------------------ */

/** Returns the version of the library that is loaded, "MAJOR.MINOR.PATCH"; HEADGATE_VERSION is the header's. */
HEADGATE_API const char* headgate_version(void);

/** Vector targets, best first: "avx3" (AVX-512), "avx2", "sse4", "neon", "emu128" or "scalar". `*count` becomes the
 * number of targets, and names[0 .. capacity) receive as many of their names as fit; those live as long as the library.
 * `names` may be NULL when capacity is 0. */
HEADGATE_API headgate_status headgate_compiled_targets(const char** names, size_t capacity, size_t* count);

/** Those of them that this CPU can run. */
HEADGATE_API headgate_status headgate_supported_targets(const char** names, size_t capacity, size_t* count);

/** The target that kernels run on now: the best, or the one that the environment variable HEADGATE_ISA names.
 * HEADGATE_INVALID_ARGUMENT if that cannot run here. `*name` lives as long as the library. */
HEADGATE_API headgate_status headgate_active_target(const char** name);

/** Makes `name` the target of every later call in this process; NULL or "" returns to the default choice.
 * HEADGATE_INVALID_ARGUMENT if it is not a supported target. Not to be called while a kernel runs. */
HEADGATE_API headgate_status headgate_set_target(const char* name);

/** What this CPU and build have for HEADGATE_PRECISION_NATIVE16, best first, beside the vector target "avx3" alone:
 * "amx_bf16", "avx512_bf16", or nothing. The list is handed out as that of headgate_supported_targets. */
HEADGATE_API headgate_status headgate_supported_native16_products(const char** names, size_t capacity, size_t* count);

/** The one that native16 uses now on the active target: amx_bf16 where the CPU has it, avx512_bf16 on AMD's CPUs since
 * Zen 4, or what headgate_set_native16_products chose; "" where there is none, and native16 computes as exact does.
 * `*name` lives as long as the library. */
HEADGATE_API headgate_status headgate_native16_products(const char** name);

/** Makes native16 use `name` in every later call of this process, and exact calls avx512_bf16 alone, where nothing is
 * lost by it; NULL or "" returns to the default choice.
 * HEADGATE_INVALID_ARGUMENT if it is not supported. Not to be called while a kernel runs. */
HEADGATE_API headgate_status headgate_set_native16_products(const char* name);

/** Implementations of the operation in this build, best first: "cpu". A call runs on the first that can compute it.
 * The list is handed out as that of the targets is. */
HEADGATE_API headgate_status headgate_supported_backends(const char** names, size_t capacity, size_t* count);

/** Makes `name` the only backend of every later call in this process; NULL or "" returns to the choice by call.
 * HEADGATE_INVALID_ARGUMENT if it is not one of them. Not to be called while a kernel runs. */
HEADGATE_API headgate_status headgate_set_backend(const char* name);

/** Frees the scratch memory, at most 32 MiB, that the calling thread keeps from its last call for its next one. */
HEADGATE_API void headgate_release_workspace(void);

/** Threads that a call uses when its options say 0; at least 1. */
HEADGATE_API int32_t headgate_default_threads(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* HEADGATE_HEADGATE_H_ */
