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
 * The C API (C99) of exact gated attention (arXiv 2505.06708) in O(T) memory. Its functions have the arguments of
 * headgate/attention.hpp, merge.hpp, statistics.hpp, cache.hpp and runtime.hpp, and results are bitwise identical.
 * types.h has statuses and tensors. linear_attention.h has linear attention, the short convolution and the gated norm.
 *
 *     s    = softcap(scale . q k^T) - slope_h . |at_i - j| + bias             softcap(x) = c . tanh(x / c)
 *     lse  = log( sum over visible j of exp(s_j), + exp(sink) )               natural logarithm
 *     o    = sum over visible j of exp(s_j - lse) v_j
 *     y    = o * g(z)   or   o + g(z)                                         z: raw gate logits
 *
 * Letters: B batch, T queries, S keys, Hq query heads, Hkv key/value heads, D head dim of q and k, Dv head dim of v and
 * y. Hq is a multiple of Hkv, and query head h reads key/value head h / (Hq/Hkv). at_i is the key position of query i:
 * query_offsets[b] + i with query_offsets, i + S - T without.
 *
 * A packed batch (varlen) holds N sequences of any lengths, one after the other, without padding. B is 1. q and all
 * tensors with a row for each query have T = T_0 + ... + T_(N-1) rows; k and v have S = S_0 + ... + S_(N-1) rows. Query
 * i of sequence n is row cu_seqlens_q[n] + i, and key j of sequence n is row cu_seqlens_k[n] + j. Queries see only keys
 * of their own sequence. The formulas above hold within a sequence, with T_n and S_n in place of T and S: at_i = i +
 * S_n - T_n, or query_offsets[n] + i.
 *
 * Structs that may grow begin with struct_size. Their other fields may be zero, which means absent or the default.
 * Initialise a struct with its _INIT macro, which sets struct_size and zeros the rest, or do the same by hand:
 *
 *     headgate_attention_inputs inputs = HEADGATE_ATTENTION_INPUTS_INIT;
 *     inputs.q = headgate_make_const_tensor(q, HEADGATE_DTYPE_F32, B, Hq, T, D);
 *     headgate_attention_options options = {.struct_size = sizeof options, .causality = HEADGATE_CAUSALITY_CAUSAL};
 *
 * Later versions may add fields at the end of a struct. Zero in a new field means the behaviour of the older version.
 * The library accepts the smaller structs of older versions. It accepts a larger struct of a newer version if the
 * unknown bytes are zero. Otherwise, and if struct_size fits no version, the call returns HEADGATE_INVALID_ARGUMENT.
 * Before 1.0, a minor version may change structs and constants in other ways, and has a different library name
 * (soname). In 0.2, a window needs has_window = 1, and the gate function 0 means the default.
 *
 * All functions are thread-safe unless their comment says otherwise, and work in a child of fork(). The library throws
 * no C++ exceptions and does not end the process. If the system cannot start enough threads, a call uses fewer. The
 * library prints only if the environment variable HEADGATE_VERBOSE is set: one line per call to stderr.
 */

#ifdef __cplusplus
extern "C" {
#endif

/* --- options ------------------------------------------------------------------------------------------------ */

/** The operation that combines the attention output o with the gate g(z). */
typedef int32_t headgate_gate_op;
enum {
  HEADGATE_GATE_OP_MUL = 0, /**< y = o * g(z) */
  HEADGATE_GATE_OP_ADD = 1  /**< y = o + g(z) */
};

/** Causal masking. */
typedef int32_t headgate_causality;
enum {
  HEADGATE_CAUSALITY_NONE = 0,
  HEADGATE_CAUSALITY_CAUSAL = 1 /**< key j is visible to query i iff j <= at_i */
};

/** The options of attention. Zeros are the defaults: scale 1/sqrt(D), no softcap, no window, not causal, a sigmoid gate
 * that is multiplied. If a has_ field is 0, the option that it belongs to must be 0 too, so that no setting is ignored.
 */
typedef struct headgate_attention_options {
  size_t struct_size;
  double scale;   /**< factor of q k^T, finite; needs has_scale = 1 */
  double softcap; /**< c > 0; 0 for no cap */
  /** Sliding window, needs has_window = 1: key j is visible to query i iff at_i - window_left <= j <= at_i +
   * window_right. -1 means no limit on that side. Below -1 the window excludes the query's own position: with
   * window_left 9 and window_right -3, query i sees keys at_i - 9 to at_i - 3. */
  int64_t window_left;
  int64_t window_right;
  int32_t has_scale;            /**< 1: use scale; 0: use 1/sqrt(D) */
  int32_t has_window;           /**< 1: use the window; 0: no window */
  headgate_causality causality; /**< a key must be visible under both causality and the window */
  headgate_gate_fn gate_fn;     /**< applied if `gate` is present */
  headgate_gate_op gate_op;
  int32_t threads;     /**< number of threads, limited to 4 per processor or 16, whichever is more. 0: at most
                          headgate_default_threads(). Results do not depend on the number. */
  const char* target;  /**< a name of headgate_supported_targets(); NULL or "": headgate_active_target() */
  const char* backend; /**< a name of headgate_supported_backends(); NULL or "": the backend of headgate_set_backend(),
                          otherwise the first that can compute the call */
  /** Threshold tau of the gate, finite and >= 0; 0 disables it. A row is one query of one head. A row with |g(z)| <=
   * tau in every feature is closed: it is not computed, and its y is 0. The error of y is at most tau * max |v| over
   * the visible keys. Closed rows cost almost nothing. Keys and values that no open row sees are not read. Forward pass
   * only, with HEADGATE_GATE_OP_MUL. A row whose largest |g(z)| equals tau up to rounding may be open or closed. */
  double gate_threshold;
  headgate_precision precision;
  int32_t reserved; /**< 0 */
  /** Dropout probability in [0, 1): each softmax weight becomes 0 with this probability, otherwise weight / (1 -
   * dropout). The choice depends only on dropout_seed and on the weight's sequence, query head, query and key. The
   * backward pass needs the same dropout and dropout_seed. */
  double dropout;
  int64_t dropout_seed;
  /** Number of keys per entry of key_indices. Entry e lists keys e * key_block_size to (e + 1) * key_block_size - 1. 0
   * means 1.
   */
  int64_t key_block_size;
} headgate_attention_options;

#define HEADGATE_ATTENTION_OPTIONS_INIT HEADGATE_INIT(headgate_attention_options)

/* --- forward ------------------------------------------------------------------------------------------------ */

/** The inputs of attention, with any strides. q and k are required. v is required unless the call computes only lse,
 * weights, max_logit or statistics. Other inputs may be absent. q, k and v have the same dtype: f32, f64, bf16 or f16.
 * k and v may also be i8, with scales. A key is visible if causality, window, mask, key_lengths and key_indices all
 * permit it. Query i is at key position at_i = i + S - T, or query_offsets[b] + i; key_lengths does not change at_i. */
typedef struct headgate_attention_inputs {
  size_t struct_size;
  headgate_const_tensor q;    /**< (B,Hq,T,D), 1 <= D <= 576 */
  headgate_const_tensor k;    /**< (B,Hkv,S,D); with a block table (P,Hkv,page,D) */
  headgate_const_tensor v;    /**< (B,Hkv,S,Dv), 1 <= Dv <= 576; with a block table (P,Hkv,page,Dv) */
  headgate_const_tensor gate; /**< z (B,Hq,T,1) headwise or (B,Hq,T,Dv) elementwise; dtype of q, or f32 */
  /** (B|1,Hq|1,T|1,S); dtype of q, or f32; -inf hides the key; a row with +inf or NaN becomes NaN */
  headgate_const_tensor bias;
  headgate_const_tensor mask;        /**< (B|1,Hq|1,T|1,S), bool, true = visible */
  headgate_const_tensor key_lengths; /**< (1,1,1,B), i32 or i64: number n of keys, 0 <= n <= S; keys j >= n are hidden
                                        and not read. key_lengths do not change at_i */
  /** ALiBi slopes: (1,1,1,Hq), (1,1,B,Hq) or, in a packed batch, (1,1,N,Hq); f32 or f64, finite */
  headgate_const_tensor alibi_slopes;
  headgate_const_tensor sinks; /**< sink logits: (1,1,1,Hq), or (B|1,Hq,T,1) for each query, f32 or f64, finite or -inf.
                                  They enter only the softmax denominator */
  /** (1,1,1,B), i32 or i64, within +-2^60: at_0, the key position of each sequence's first query. Example: a cache has
   * S slots and n keys, and the T queries belong to the last T keys. Set key_lengths to n and query_offsets to n - T.
   */
  headgate_const_tensor query_offsets;
  /** (1,1,1,N+1), i32 or i64: the bounds of the sequences of a packed batch. Needs cu_seqlens_k or block_table. The
   * first entry is 0, the last is T, and none decreases; equal entries make an empty sequence. key_lengths (n <= S_n)
   * and query_offsets have N entries. bias, mask and weights have all T rows and S columns. Elements whose query and
   * key belong to different sequences are not read in bias and mask, and are 0 in weights. Results of a sequence are
   * bitwise identical to a separate call. */
  headgate_const_tensor cu_seqlens_q;
  /** (1,1,1,N+1), i32 or i64: the bounds of the sequences in k and v; the last bound is S */
  headgate_const_tensor cu_seqlens_k;
  /** The pages of each sequence: (1,1,B|N,M), i32; forward pass only. k and v consist of P pages of `page` tokens. Key
   * j of sequence b is row j % page of page e = block_table[b][j / page], 0 <= e < P. Sequences may share pages. S is
   * M*page. key_lengths is required. Pages and table entries beyond key_lengths are not read. In a packed batch only
   * the queries are packed: bias, mask and weights have the S columns of the query's own sequence. Without
   * query_offsets, the last query of a sequence is at its last key, key_lengths[n] - 1. */
  headgate_const_tensor block_table;
  headgate_const_tensor k_scale;  /**< the scales of k: (B,Hkv,S,1) or, with a block table, (P,Hkv,page,1); f32; forward
                                     pass only. Required if k and v are i8, otherwise absent. Key j is k_scale[j]*k[j],
                                     and value j is v_scale[j]*v[j]. q may be f32, f64, bf16 or f16 */
  headgate_const_tensor v_scale;  /**< scales of v, with the shape of k_scale */
  headgate_const_tensor key_bias; /**< a second bias, (B|1,1,1,S), f32, f64, bf16 or f16. It is added to the scores of a
                                     key for all heads and queries. -inf hides the key. key_bias has no gradient */
  /** Lists of keys: (B|1,Hkv|1,T,K), i32 or i64. Query i sees key j only if list i has j. With key_block_size > 1, list
   * i must have the block of key j instead. The other rules (causality, window, mask, key_lengths) must permit key j
   * too. Entry -1 is empty. Repeated entries count once. Other entries must be at least 0 and below S / key_block_size,
   * rounded up. In a packed batch, keys are numbered within the query's sequence, and S is S_n. The time of both passes
   * and of statistics grows with K, not with S. */
  headgate_const_tensor key_indices;
  headgate_const_tensor k_first; /**< the first F keys of each sequence, not rounded to int8: (B,Hkv,F,D) or, in a
                                    packed batch, (N,Hkv,F,D); f32, f64, bf16 or f16; forward pass only. Needs k of
                                    dtype i8, and v_first. Keys and values j < F are k_first[j] and v_first[j]. Rows j <
                                    F of k, v and their scales are ignored. F may exceed the number of keys */
  headgate_const_tensor v_first; /**< the first F values: (B|N,Hkv,F,Dv), dtype of k_first */
} headgate_attention_inputs;

#define HEADGATE_ATTENTION_INPUTS_INIT HEADGATE_INIT(headgate_attention_inputs)

/** The outputs of the forward pass, which overwrites them. Leave y and attn absent to compute only lse, weights or
 * max_logit. */
typedef struct headgate_attention_outputs {
  size_t struct_size;
  headgate_tensor y;       /**< (B,Hq,T,Dv), dtype of q; if absent, v and gate are not read; gate_threshold must be 0 */
  headgate_tensor lse;     /**< (B,Hq,T,1), f32 or f64, natural log, including the sink; -inf if no key is visible */
  headgate_tensor attn;    /**< o (B,Hq,T,Dv), dtype of q: the output before the gate */
  headgate_tensor weights; /**< exp(s - lse) (B,Hq,T,S), dtype of q; T*S elements per head, for small problems */
  headgate_tensor max_logit; /**< the largest score s of the visible keys, without the sink; f32 or f64. The shape
                                (B,Hq,T,1) gives a maximum for each row. The shape (B,Hq,1,1), in a packed batch
                                (N,Hq,1,1), gives a maximum for each head of a sequence. -inf if no key is visible, and
                                in rows that gate_threshold closes. NaN where lse is NaN */
} headgate_attention_outputs;

#define HEADGATE_ATTENTION_OUTPUTS_INIT HEADGATE_INIT(headgate_attention_outputs)

/** Computes y = gate(z) * softmax(scale . q k^T + bias, mask) v.
 *
 * A row with no visible key has o = 0. Its lse is -inf or, with a sink, the sink logit. A row closed by gate_threshold
 * has y = 0, o = 0, weights = 0, max_logit = -inf and lse = +inf, which headgate_attention_backward refuses. The last
 * bits of an open row may depend on which other rows of its head are open. Sums and the gate are computed in f32 or
 * better. Results are rounded to the storage type once. Results are bitwise identical for any number of threads.
 *
 * Outputs must not overlap inputs or each other; views that interleave in one buffer are permitted. `options` may be
 * NULL for the defaults. */
HEADGATE_API headgate_status headgate_attention_forward(const headgate_attention_outputs* outputs,
                                                        const headgate_attention_inputs* inputs,
                                                        const headgate_attention_options* options);

/* --- backward ----------------------------------------------------------------------------------------------- */

/** Outputs of the forward pass that the backward pass reads. y and lse are required. attn is
 *
 * - required for dgate with silu or identity and HEADGATE_GATE_OP_MUL, because y does not determine o where g = 0;
 * - useful with HEADGATE_GATE_OP_ADD, to avoid cancellation in y - g(z);
 * - useful in f16, where y has few digits behind nearly closed gates. */
typedef struct headgate_attention_saved {
  size_t struct_size;
  headgate_const_tensor y;    /**< (B,Hq,T,Dv) */
  headgate_const_tensor lse;  /**< (B,Hq,T,1), f32 or f64, including the sink */
  headgate_const_tensor attn; /**< (B,Hq,T,Dv) */
} headgate_attention_saved;

#define HEADGATE_ATTENTION_SAVED_INIT HEADGATE_INIT(headgate_attention_saved)

/** Incoming gradients. dy is required; an absent dlse means zero. */
typedef struct headgate_attention_incoming {
  size_t struct_size;
  headgate_const_tensor dy;   /**< (B,Hq,T,Dv), dtype of q */
  headgate_const_tensor dlse; /**< (B,Hq,T,1), f32 or f64 */
} headgate_attention_incoming;

#define HEADGATE_ATTENTION_INCOMING_INIT HEADGATE_INIT(headgate_attention_incoming)

/** Gradients to compute; each may be absent. Existing values are overwritten, not added to. */
typedef struct headgate_attention_gradients {
  size_t struct_size;
  headgate_tensor dq;     /**< (B,Hq,T,D), dtype of q */
  headgate_tensor dk;     /**< (B,Hkv,S,D), dtype of q; summed over the query heads of the key/value head */
  headgate_tensor dv;     /**< (B,Hkv,S,Dv), dtype of q */
  headgate_tensor dgate;  /**< shape and dtype of gate; summed over Dv when headwise; refused without a gate function */
  headgate_tensor dbias;  /**< shape and dtype of bias; summed over its broadcast dimensions */
  headgate_tensor dsinks; /**< shape and dtype of sinks; summed over the batches and queries that share a logit */
} headgate_attention_gradients;

#define HEADGATE_ATTENTION_GRADIENTS_INIT HEADGATE_INIT(headgate_attention_gradients)

/** Computes the gradients of sum(dy*y) + sum(dlse*lse). With P = exp(s - lse):
 *
 *     do = dy * g(z) (mul) or dy (add);  delta = rowsum(do * o) = rowsum(dy * y) for mul;
 *     ds = P * (do v^T - delta + dlse);  dq = scale . ds' k;  dk = scale . ds'^T q;  dv = P^T do;  dbias = ds;
 *     dsink = -exp(sink - lse)(delta - dlse);  dz = dy * o * g'(z), for sigmoid dy * y * (1 - g);
 *
 * With a softcap c, ds' is ds * (1 - tanh^2(scale . q k^T / c)); otherwise ds' = ds. `inputs` and `options` must be
 * those of the forward pass. A gate_threshold above 0 and an lse of +inf are refused, because rows that were not
 * computed have no gradients. Sums are f32 or better, and results are deterministic. */
HEADGATE_API headgate_status headgate_attention_backward(const headgate_attention_gradients* gradients,
                                                         const headgate_attention_inputs* inputs,
                                                         const headgate_attention_saved* saved,
                                                         const headgate_attention_incoming* incoming,
                                                         const headgate_attention_options* options);

/* --- keys in parts ------------------------------------------------------------------------------------------ */

/** @file
 *
 * **Keys in parts.** These functions compute attention over ranges of keys and merge the results. Useful for ring and
 * context-parallel attention, and for KV caches in several memories.
 *
 * Forward pass:
 *
 * - headgate_narrow_keys returns the inputs for one range of keys.
 * - headgate_attention_forward computes attn_i and lse_i of each range, without `gate` and with `sinks` in one range
 *   only.
 * - headgate_attention_merge merges the parts and applies the gate.
 *
 * Backward pass, in one of two ways:
 *
 * - headgate_attention_merge_backward computes dattn_i, dlse_i and dgate from dy. Then call headgate_attention_backward
 *   for each range without a gate, with dattn_i and dlse_i as dy and dlse, and attn_i and lse_i as y and lse.
 * - Or call headgate_attention_backward for each range with the gate, with dy and dlse, and with y, attn and lse of the
 *   merged result. The weights exp(s - lse) and delta are then those of all keys. Each of these calls computes the
 *   complete dgate and dsinks: request them in one call only, and pass `sinks` to this call.
 *
 * In both ways dk, dv and dbias of a range are final; dq is the sum over the ranges.
 *
 * The dropout mask depends on the index of a key in its range. Ranges therefore drop other weights than a single call
 * for all keys. With equal seeds, all ranges drop the same pattern: give each range its own dropout_seed, the same in
 * both passes. */

/** Sets `*range` to `*inputs` restricted to the keys [begin, end), 0 <= begin <= end <= S. `range` may equal `inputs`.
 * Packed batches and key_indices are refused.
 *
 * Narrows k, v, their scales, k_first, v_first, and the columns of bias, key_bias and mask. Makes key lengths and query
 * offsets relative to key `begin`, so that causality, window and ALiBi do not change. Keeps `sinks` and `gate`; remove
 * them where they must not be applied again.
 *
 * `query_offsets` and `key_lengths` receive B numbers each; `key_lengths` may be NULL if inputs->key_lengths is absent.
 * `*range` points into these two arrays and into the memory of `inputs`, which must outlive `*range`. The caller sets
 * range->struct_size, as _INIT does. No byte beyond struct_size is written. A struct too small for the result is
 * refused. */
HEADGATE_API headgate_status headgate_narrow_keys(headgate_attention_inputs* range,
                                                  const headgate_attention_inputs* inputs, int64_t begin, int64_t end,
                                                  int64_t* query_offsets, int64_t* key_lengths);

/** The result of attention over one range of keys: `attn` and `lse` of headgate_attention_forward without a gate. */
typedef struct headgate_merge_part {
  headgate_const_tensor attn; /**< (B,Hq,T,Dv); f32, f64, bf16 or f16, the same dtype for all parts */
  headgate_const_tensor lse;  /**< (B,Hq,T,1), f32 or f64 */
} headgate_merge_part;

/** Gradients of a part to compute; each may be absent. */
typedef struct headgate_merge_part_gradients {
  headgate_tensor attn; /**< (B,Hq,T,Dv), dtype of the part's attn */
  headgate_tensor lse;  /**< (B,Hq,T,1), f32 or f64 */
} headgate_merge_part_gradients;

/** Merges parts: lse = log sum_i exp(lse_i), attn = sum_i exp(lse_i - lse) attn_i, y = attn * g(z) or attn + g(z).
 *
 * `outputs` must have at least one of y, lse and attn, and neither weights nor max_logit. `gate` is z, (B,Hq,T,1) or
 * (B,Hq,T,Dv), in the dtype of the parts or f32. If `gate` is NULL or absent, y is attn. `options` may be NULL. Only
 * gate_fn, gate_op, threads, target and backend are used.
 *
 * In rows with lse_i = -inf, part i is ignored and its attn is not read. If all lse_i are -inf, attn is 0 and lse is
 * -inf. lse_i = +inf marks a row that was not computed and is refused. Only one part may include the sink in its lse.
 * Sums are f32 or better, in the order of the parts. Results are bitwise identical for any number of threads. */
HEADGATE_API headgate_status headgate_attention_merge(const headgate_attention_outputs* outputs,
                                                      const headgate_merge_part* parts, size_t count,
                                                      const headgate_const_tensor* gate,
                                                      const headgate_attention_options* options);

/** Computes the gradients of sum(dy*y) + sum(dlse*lse) through headgate_attention_merge. With w_i = exp(lse_i - lse):
 *
 *     dattn = dy * g(z) (mul) or dy (add, or no gate);  dz = dy * attn * g'(z) (mul) or dy * g'(z) (add);
 *     dattn_i = w_i . dattn;  dlse_i = w_i . (dlse + sum_x dattn * (attn_i - attn)).
 *
 * Recomputes attn and lse from the parts. `gradients` has `count` elements, one for each part. `dgate` may be NULL or
 * absent. It has the shape and dtype of gate; a headwise dgate is summed over Dv. Gradients are overwritten. They are 0
 * where headgate_attention_merge ignores a part. */
HEADGATE_API headgate_status headgate_attention_merge_backward(const headgate_merge_part_gradients* gradients,
                                                               const headgate_tensor* dgate,
                                                               const headgate_merge_part* parts, size_t count,
                                                               const headgate_const_tensor* gate,
                                                               const headgate_attention_incoming* incoming,
                                                               const headgate_attention_options* options);

/* --- statistics --------------------------------------------------------------------------------------------- */

/** The keys and queries to which statistics apply. */
typedef struct headgate_statistics_selection {
  size_t struct_size;
  /** The keys of key_weights: (1,1,1,J), i32 or i64, 0 <= j < S, in any order; keys may repeat. In a packed batch, j
   * counts keys within each sequence. The weight of key j is 0 in sequences with at most j keys. */
  headgate_const_tensor keys;
  headgate_const_tensor queries; /**< the queries of `rows`: (1,1,1,R), i32 or i64, 0 <= i < T, in any order; queries
                                    may repeat. In a packed batch, i is a row of q */
  int64_t window;                /**< W >= 0, the window of window_share and mean_window_share */
} headgate_statistics_selection;

#define HEADGATE_STATISTICS_SELECTION_INIT HEADGATE_INIT(headgate_statistics_selection)

/** The outputs of headgate_attention_statistics, which overwrites them: statistics of the weights P = exp(s - lse).
 * Absent outputs are not computed. All are f32 or f64, except topk_index, which is i32 or i64.
 *
 * Means are over the queries of a sequence. With a causal mask, means exclude the query at the first key, which sees
 * only itself. Means include rows without a visible key.
 *
 * In a packed batch of N sequences, means have N in place of B. If keys are paged, key_mass has N in place of B too.
 * Otherwise key_mass and `rows` have the S columns of all sequences, and `rows` is 0 in columns of other sequences.
 * first, key_weights and topk_index count keys within the query's own sequence. */
typedef struct headgate_attention_statistics_outputs {
  size_t struct_size;
  headgate_tensor row_max;           /**< (B,Hq,T,1): max over j of P_ij; the largest score is log(row_max) + lse */
  headgate_tensor entropy;           /**< (B,Hq,T,1): -sum of P_ij log P_ij, in nats. With a sink, the sum includes its
                                        weight exp(sink - lse) */
  headgate_tensor first;             /**< (B,Hq,T,1): P_i0 */
  headgate_tensor first_gated;       /**< (B,Hq,T,1): P_i0 * mean over features of g(z_i), for HEADGATE_GATE_OP_MUL */
  headgate_tensor window_share;      /**< (B,Hq,T,1): sum of P_ij over |at_i - j| <= W */
  headgate_tensor key_weights;       /**< (B,Hq,T,J): P_ij of the selection's keys */
  headgate_tensor mean_row_max;      /**< (B,Hq,1,1) */
  headgate_tensor mean_entropy;      /**< (B,Hq,1,1) */
  headgate_tensor mean_first;        /**< (B,Hq,1,1) */
  headgate_tensor mean_first_gated;  /**< (B,Hq,1,1) */
  headgate_tensor mean_window_share; /**< (B,Hq,1,1) */
  headgate_tensor mean_key_weights;  /**< (B,Hq,1,J) */
  headgate_tensor key_mass;          /**< (B,Hq,1,S): sum over i of P_ij, the total weight of key j */
  /** (B,Hq,T,K), 1 <= K <= 1024: the K keys with the largest scores, in descending order; ties in order of index. If
   * fewer than K keys have a weight above 0, -1 fills the remaining entries. */
  headgate_tensor topk_index;
  headgate_tensor topk_weight; /**< (B,Hq,T,K): weights of the keys in topk_index; 0 where topk_index is -1 */
  headgate_tensor rows;        /**< (B,Hq,R,S): P_ij of the selection's queries; 0 where the key is hidden */
} headgate_attention_statistics_outputs;

#define HEADGATE_ATTENTION_STATISTICS_OUTPUTS_INIT HEADGATE_INIT(headgate_attention_statistics_outputs)

/** Computes statistics of the weights of a forward pass with the same inputs and options, without a T*S buffer.
 *
 * v is not read and may be absent; gate is read only for first_gated. `lse` is (B,Hq,T,1), f32 or f64, from the forward
 * pass. Rows with an infinite lse have no weights, and all their statistics are 0. Rows with lse NaN have statistics
 * NaN. topk_index is -1 in both cases. `selection` and `options` may be NULL. Results are bitwise identical for any
 * number of threads. */
HEADGATE_API headgate_status headgate_attention_statistics(const headgate_attention_statistics_outputs* outputs,
                                                           const headgate_attention_inputs* inputs,
                                                           const headgate_const_tensor* lse,
                                                           const headgate_statistics_selection* selection,
                                                           const headgate_attention_options* options);

/* --- keys and values of past tokens -------------------------------------------------------------------------- */

/** A paged KV cache for decoding. It records which pages of keys and values belong to which sequence. The code for one
 * new token of a sequence:
 *
 *     headgate_cache_append(cache, &sequence, 1, &k, &v);               k (1,Hkv,1,D), v (1,Hkv,1,Dv)
 *     headgate_cache_batch(cache, &inputs, block_table, capacity, &key_length, &query_offset, &sequence, 1, 1);
 *     inputs.q = ...;
 *     headgate_attention_forward(&outputs, &inputs, &options);
 *
 * If pages are as long as the longest sequence, each sequence has one page. The cache is then a tensor (B,Hkv,S,D). A
 * function that fails changes nothing. No thread may use a cache while another one changes it. */
typedef struct headgate_cache headgate_cache;

/** The sizes of a cache. */
typedef struct headgate_cache_shape {
  size_t struct_size;
  int64_t kv_heads;     /**< Hkv, at least 1 */
  int64_t head_dim;     /**< D, 1 to 576 */
  int64_t value_dim;    /**< Dv, 1 to 576 */
  int64_t page;         /**< tokens per page; 0 means 16 */
  int64_t pages;        /**< number of pages P, 0 to 2^31 - 1 */
  headgate_dtype dtype; /**< f32 (also for 0), f64, bf16, f16, or i8 with a scale, max|x| / 127, per token and head */
  headgate_dtype whole_dtype; /**< type of the unrounded first rows: f32 (also for 0), f64, bf16 or f16 */
  /** Number F of tokens at the start of each sequence whose keys and values are kept unrounded (k_first and v_first of
   * headgate_attention_inputs). Only with i8. Each sequence stores these rows outside the pages. */
  int64_t whole_first;
} headgate_cache_shape;

#define HEADGATE_CACHE_SHAPE_INIT HEADGATE_INIT(headgate_cache_shape)

/** The memory of a cache. */
typedef struct headgate_cache_tensors {
  size_t struct_size;
  headgate_tensor k;       /**< (P,Hkv,page,D) */
  headgate_tensor v;       /**< (P,Hkv,page,Dv), dtype of k */
  headgate_tensor k_scale; /**< (P,Hkv,page,1), f32; only if k and v are i8 */
  headgate_tensor v_scale; /**< (P,Hkv,page,1), f32; only if k and v are i8 */
} headgate_cache_tensors;

#define HEADGATE_CACHE_TENSORS_INIT HEADGATE_INIT(headgate_cache_tensors)

/** Sets `*bytes` to the number of bytes that a cache of this shape needs. */
HEADGATE_API headgate_status headgate_cache_bytes(size_t* bytes, const headgate_cache_shape* shape);

/** Sets `*tensors` to contiguous tensors of this shape in `memory`, which has headgate_cache_bytes bytes and is aligned
 * to 8 bytes. The caller sets tensors->struct_size. Does not write to the memory. */
HEADGATE_API headgate_status headgate_cache_place(headgate_cache_tensors* tensors, void* memory,
                                                  const headgate_cache_shape* shape);

/** Creates a cache, which headgate_cache_destroy frees. headgate_cache_create allocates the memory of the cache.
 * headgate_cache_create_over uses the caller's tensors. They may have any strides, but their elements must not overlap,
 * and their memory must outlive the cache. Such a cache keeps no unrounded first rows (whole_first). A NULL cache may
 * be destroyed. */
HEADGATE_API headgate_status headgate_cache_create(headgate_cache** cache, const headgate_cache_shape* shape);
HEADGATE_API headgate_status headgate_cache_create_over(headgate_cache** cache, const headgate_cache_tensors* tensors);
HEADGATE_API void headgate_cache_destroy(headgate_cache* cache);

/** Adds a sequence without tokens and sets `*sequence` to its number. */
HEADGATE_API headgate_status headgate_cache_add_sequence(headgate_cache* cache, int64_t* sequence);

/** Adds a sequence with the tokens of `sequence` and sets `*made` to its number. Both sequences share the pages. If the
 * last page is not full, the sequence that appends first gets its own copy of that page. */
HEADGATE_API headgate_status headgate_cache_fork(headgate_cache* cache, int64_t* made, int64_t sequence);

/** Removes a sequence. Its number becomes available again, and so do its pages that no other sequence shares. */
HEADGATE_API headgate_status headgate_cache_remove_sequence(headgate_cache* cache, int64_t sequence);

/** Appends T tokens to each of `count` different sequences: k (count,Hkv,T,D) and v (count,Hkv,T,Dv), both f32, f64,
 * bf16 or f16. Converts them to the cache's dtype, or quantizes them for i8. */
HEADGATE_API headgate_status headgate_cache_append(headgate_cache* cache, const int64_t* sequences, size_t count,
                                                   const headgate_const_tensor* k, const headgate_const_tensor* v);

/** Removes all tokens of the sequence after the first `length`. */
HEADGATE_API headgate_status headgate_cache_truncate(headgate_cache* cache, int64_t sequence, int64_t length);

/** Applies a sliding window with attention sinks. Drops each page that holds none of the first `sinks` tokens and none
 * of the last `window` tokens. The remaining tokens become keys 0 ... length - 1. headgate_cache_position still counts
 * the dropped tokens: keys and queries rotated by RoPE with that position keep their true distances. `sinks` must fill
 * the same number of pages in all calls for one sequence. */
HEADGATE_API headgate_status headgate_cache_slide(headgate_cache* cache, int64_t sequence, int64_t sinks,
                                                  int64_t window);

/** Sets `*length` to the number of tokens in the sequence, or `*position` to the position of its next token. The
 * position includes tokens dropped by headgate_cache_slide. */
HEADGATE_API headgate_status headgate_cache_length(const headgate_cache* cache, int64_t* length, int64_t sequence);
HEADGATE_API headgate_status headgate_cache_position(const headgate_cache* cache, int64_t* position, int64_t sequence);

/** Sets `*pages` to the number of pages that no sequence uses. */
HEADGATE_API headgate_status headgate_cache_free_pages(const headgate_cache* cache, int64_t* pages);

/** Sets `*tensors` to the tensors of the cache, valid until it grows, moves or is destroyed. The caller sets
 * tensors->struct_size. */
HEADGATE_API headgate_status headgate_cache_get_tensors(const headgate_cache* cache, headgate_cache_tensors* tensors);

/** Sets `*entries` to the number of entries in a block table of these sequences: `count` times the largest number of
 * pages of a sequence. */
HEADGATE_API headgate_status headgate_cache_table_entries(const headgate_cache* cache, size_t* entries,
                                                          const int64_t* sequences, size_t count);

/** Sets k, v, k_scale, v_scale, block_table, key_lengths, query_offsets, k_first and v_first of `*inputs` for a batch
 * of B = count sequences. The T queries of each sequence belong to its last T tokens. T must not exceed the shortest
 * length. The caller sets inputs->struct_size.
 *
 * The three arrays are the caller's memory and must outlive `*inputs`. `block_table` has `capacity` entries, at least
 * as many as headgate_cache_table_entries returns; `key_lengths` and `query_offsets` have `count`. The cache owns the
 * memory of k_first and v_first, which is valid until the next batch. With whole_first, this call thus changes the
 * cache. Meanwhile no other thread may use the cache, or `*inputs` of an earlier batch. For packed queries
 * (cu_seqlens_q), pass T = 0 and clear query_offsets of `*inputs`. */
HEADGATE_API headgate_status headgate_cache_batch(const headgate_cache* cache, headgate_attention_inputs* inputs,
                                                  int32_t* block_table, size_t capacity, int64_t* key_lengths,
                                                  int64_t* query_offsets, const int64_t* sequences, size_t count,
                                                  int64_t T);

/** Enlarges the cache to `pages` pages. Only for a cache that owns its memory. Invalidates tensors and inputs that
 * point to the old memory. */
HEADGATE_API headgate_status headgate_cache_grow(headgate_cache* cache, int64_t pages);

/** Copies all used pages to `tensors`, memory of the caller, and keeps the cache there from then on. `tensors` may have
 * more pages than the current tensors, but must otherwise have the same shapes and dtypes. `tensors` must not overlap
 * the current tensors. Exception: if the current tensors are the caller's memory too, a tensor may stay in place, with
 * the same address and strides. Frees the memory that the cache owned. */
HEADGATE_API headgate_status headgate_cache_move_to(headgate_cache* cache, const headgate_cache_tensors* tensors);

/* --- runtime ------------------------------------------------------------------------------------------------ */

/** Returns the version of the loaded library, "MAJOR.MINOR.PATCH". HEADGATE_VERSION is the version of the header. */
HEADGATE_API const char* headgate_version(void);

/** Lists the vector targets in this build, best first: "avx3" (AVX-512), "avx2", "sse4", "neon", "emu128" or "scalar".
 * Sets `*count` to their number, and names[0 .. capacity) to as many names as fit. The strings live as long as the
 * library. `names` may be NULL if capacity is 0. */
HEADGATE_API headgate_status headgate_compiled_targets(const char** names, size_t capacity, size_t* count);

/** Lists the vector targets in this build that this CPU can run, like headgate_compiled_targets. */
HEADGATE_API headgate_status headgate_supported_targets(const char** names, size_t capacity, size_t* count);

/** Sets `*name` to the current vector target: the target of headgate_set_target, otherwise that of the environment
 * variable HEADGATE_ISA, otherwise the best. Returns HEADGATE_INVALID_ARGUMENT if HEADGATE_ISA names a target that
 * cannot run here. The string lives as long as the library. */
HEADGATE_API headgate_status headgate_active_target(const char** name);

/** Selects the vector target of all later calls in this process; NULL or "" restores the default. Returns
 * HEADGATE_INVALID_ARGUMENT if `name` is not a supported target. Must not be called while a kernel runs. */
HEADGATE_API headgate_status headgate_set_target(const char* name);

/** Lists the instruction sets that HEADGATE_PRECISION_NATIVE16 can use on this CPU in this build, best first:
 * "amx_bf16" and "avx512_bf16". Both need the vector target "avx3". The arguments are those of
 * headgate_compiled_targets. */
HEADGATE_API headgate_status headgate_supported_native16_products(const char** names, size_t capacity, size_t* count);

/** Sets `*name` to the instruction set that HEADGATE_PRECISION_NATIVE16 uses on the current target: the choice of
 * headgate_set_native16_products. Without a choice, this is amx_bf16 if available, or else avx512_bf16 on AMD CPUs
 * since Zen 4. "" if neither applies; native16 then computes like exact. The string lives as long as the library. */
HEADGATE_API headgate_status headgate_native16_products(const char** name);

/** Selects the instruction set that HEADGATE_PRECISION_NATIVE16 uses in all later calls of this process; NULL or ""
 * restores the default. If `name` is "avx512_bf16", exact calls use these instructions too where that loses no
 * precision. Returns HEADGATE_INVALID_ARGUMENT if `name` is not supported. Must not be called while a kernel runs. */
HEADGATE_API headgate_status headgate_set_native16_products(const char* name);

/** Lists the backends for attention in this build, best first: "cpu". A call uses the first backend that can compute
 * it. The arguments are those of headgate_compiled_targets. */
HEADGATE_API headgate_status headgate_supported_backends(const char** names, size_t capacity, size_t* count);

/** Makes all later calls of this process use the backend `name`; NULL or "" restores the choice for each call. Returns
 * HEADGATE_INVALID_ARGUMENT if `name` is not a supported backend. Must not be called while a kernel runs. */
HEADGATE_API headgate_status headgate_set_backend(const char* name);

/** Frees the scratch memory, at most 32 MiB, that the calling thread keeps between calls. */
HEADGATE_API void headgate_release_workspace(void);

/** Returns the maximum number of threads of a call with threads = 0. It is at least 1. */
HEADGATE_API int32_t headgate_default_threads(void);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* HEADGATE_HEADGATE_H_ */
