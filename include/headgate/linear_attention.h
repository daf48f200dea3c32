/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADGATE_LINEAR_ATTENTION_H_
#define HEADGATE_LINEAR_ATTENTION_H_

/** @file
 * The C API of gated linear attention, the short convolution before it and the gated norm after it. It corresponds to
 * headgate/linear_attention.hpp, linear_attention_statistics.hpp, short_convolution.hpp and gated_norm.hpp.
 * headgate/headgate.h includes this file, and documents what all structs and functions have in common. */

#include <stddef.h>
#include <stdint.h>

#include "headgate/export.h"
#include "headgate/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- linear attention --------------------------------------------------------------------------------------- */

/** @file
 *
 * **Linear attention.** Gated linear attention with the delta rule: the exact recurrence of Gated DeltaNet. Each head
 * has a state S (D,Dv) in place of a KV cache. Token t updates the state S_(t-1) by one of these rules:
 *
 *     linear        S_t = S_(t-1) + k_t v_t^T
 *     gated         S_t = e^g_t S_(t-1) + k_t v_t^T
 *     delta         S_t = S_(t-1) + beta_t k_t (v_t - S_(t-1)^T k_t)^T
 *     gated_delta   S_t = e^g_t S_(t-1) + beta_t k_t (v_t - (e^g_t S_(t-1))^T k_t)^T
 *
 *     y_t = scale . S_t^T q_t
 *
 * The decay g_t is one number for the whole state of a head, or one number for each row of the state.
 *
 * Letters: B batch, T tokens, D head dim of q and k, Dv head dim of v and y, Hq heads of q, Hk heads of k, Hv heads of
 * v, Ho = max(Hq, Hv) heads of y. Each head of v has a state. Hv is a multiple of Hk, and state h reads key head h /
 * (Hv/Hk). If Hq is a multiple of Hv, head h of y reads query head h and state h / (Hq/Hv). If Hv is a multiple of Hq,
 * head h of y reads query head h / (Hv/Hq) and state h.
 *
 * A packed batch (varlen) holds N sequences one after the other, without padding. B is 1, and token i of sequence n is
 * row cu_seqlens[n] + i of all tensors with a row for each token. Each sequence has its own state. Without cu_seqlens,
 * N is B. */

/** The rule by which a token changes the state. The formulas are at the top of this section. */
typedef int32_t headgate_linear_rule;
enum {
  HEADGATE_LINEAR_RULE_GATED_DELTA = 0,
  HEADGATE_LINEAR_RULE_DELTA = 1,
  HEADGATE_LINEAR_RULE_GATED = 2,
  HEADGATE_LINEAR_RULE_LINEAR = 3
};

/** The options of linear attention. Zeros are the defaults: rule gated_delta, scale 1/sqrt(D), no norms. If a has_
 * field is 0, the option that it belongs to must be 0 too. */
typedef struct headgate_linear_attention_options {
  size_t struct_size;
  double scale; /**< factor of S^T q, finite; needs has_scale = 1 */
  /** eps >= 0 of L2 norms; needs has_l2_norm = 1. Each row of q and k is first divided by its L2 norm sqrt(sum x^2 +
   * eps). A row of zeros stays zero. With eps 0, gradients of such a row are zero too. */
  double l2_norm;
  int32_t has_scale;   /**< 1: use scale; 0: use 1/sqrt(D) */
  int32_t has_l2_norm; /**< 1: divide q and k by their norms; 0: no norms */
  headgate_linear_rule rule;
  int32_t threads; /**< threads, target and backend are as in headgate_attention_options */
  const char* target;
  const char* backend;
  /** The precision of the factors in products. NATIVE16 needs bf16 q, k and v. It permits a pass to multiply bf16
   * numbers. The pass then rounds these factors and their gradients to bf16: q and k after the norm; q . k times the
   * decay between the two tokens; the state as a factor; the values that tokens write to the state, and these values
   * times their decay. The state itself is kept in f32. Calls compute like EXACT on CPUs without bf16 instructions, for
   * sequences of fewer than 32 tokens, and with a decay for each feature. The backward pass also computes a sequence
   * like EXACT if the decays of consecutive tokens in a chunk of 32 multiply to more than 64. Weights and statistics
   * are always those of EXACT. */
  headgate_precision precision;
  int32_t reserved; /**< 0 */
} headgate_linear_attention_options;

#define HEADGATE_LINEAR_ATTENTION_OPTIONS_INIT HEADGATE_INIT(headgate_linear_attention_options)

/** The inputs of linear attention, with any strides. q, k and v are required and share a dtype: f32, f64, bf16, f16. */
typedef struct headgate_linear_attention_inputs {
  size_t struct_size;
  headgate_const_tensor q; /**< (B,Hq,T,D), 1 <= D <= 256 */
  headgate_const_tensor k; /**< (B,Hk,T,D) */
  headgate_const_tensor v; /**< (B,Hv,T,Dv), 1 <= Dv <= 256 */
  /** Natural logarithms g of the decay: (B,Hv,T,1), or (B,Hv,T,D) for one decay per feature. dtype of q, or f32.
   * Usually -inf <= g <= 0. Only for the rules gated and gated_delta. Absent means g = 0, no decay. */
  headgate_const_tensor decay;
  headgate_const_tensor beta; /**< beta (B,Hv,T,1), or (B,1,T,1) if all heads share it; dtype of q, or f32. Only for the
                                 rules delta and gated_delta; absent means 1 */
  headgate_const_tensor state;      /**< S_0 (N,Hv,D,Dv), f32 or f64; absent means 0 */
  headgate_const_tensor cu_seqlens; /**< (1,1,1,N+1), i32 or i64: non-decreasing bounds of a packed batch, 0 to T */
  /** Lengths after which to write states to `snapshots`: (1,1,N,M), or (1,1,1,M) for all sequences, i32 or i64. Entry
   * [n,m] is a number of tokens of sequence n, from 0 (the state S_0) to all its tokens. Entries of a row do not
   * decrease. Only the forward pass accepts snapshot_lengths; other functions refuse it. */
  headgate_const_tensor snapshot_lengths;
} headgate_linear_attention_inputs;

#define HEADGATE_LINEAR_ATTENTION_INPUTS_INIT HEADGATE_INIT(headgate_linear_attention_inputs)

/** The outputs of linear attention, which overwrites them. y is required. */
typedef struct headgate_linear_attention_outputs {
  size_t struct_size;
  headgate_tensor y; /**< (B,Ho,T,Dv), dtype of q */
  /** S_T (N,Hv,D,Dv), f32 or f64; may be the same view as inputs.state, to update the state in place */
  headgate_tensor state;
  /** States after chosen numbers of tokens, (N*M,Hv,D,Dv), f32 or f64. Row n*M + m is the state after
   * snapshot_lengths[n,m] tokens of sequence n. Required with snapshot_lengths, and refused without. */
  headgate_tensor snapshots;
} headgate_linear_attention_outputs;

#define HEADGATE_LINEAR_ATTENTION_OUTPUTS_INIT HEADGATE_INIT(headgate_linear_attention_outputs)

/** Computes the recurrence for T >= 0 tokens: a prompt, a continuation from a state, or a single new token. States and
 * sums are f32 or better, whatever the dtype of q. Results are bitwise identical for any number of threads. Outputs
 * must not overlap inputs or each other, except for a state updated in place. `options` may be NULL.
 *
 * Snapshots divide a sequence into parts. Results are bitwise identical to separate calls for the parts, where each
 * call starts from the snapshot before its part. A snapshot after every token thus gives the results of T calls for one
 * token. */
HEADGATE_API headgate_status headgate_linear_attention_forward(const headgate_linear_attention_outputs* outputs,
                                                               const headgate_linear_attention_inputs* inputs,
                                                               const headgate_linear_attention_options* options);

/** Incoming gradients. dy is required; an absent dstate means zero. */
typedef struct headgate_linear_attention_incoming {
  size_t struct_size;
  headgate_const_tensor dy;     /**< (B,Ho,T,Dv), dtype of q */
  headgate_const_tensor dstate; /**< gradient of S_T (N,Hv,D,Dv), f32 or f64 */
} headgate_linear_attention_incoming;

#define HEADGATE_LINEAR_ATTENTION_INCOMING_INIT HEADGATE_INIT(headgate_linear_attention_incoming)

/** Gradients to compute; each may be absent. Existing values are overwritten, not added to. Each gradient has the shape
 * and dtype of its input. It is summed over the heads that share the input. */
typedef struct headgate_linear_attention_gradients {
  size_t struct_size;
  headgate_tensor dq;     /**< (B,Hq,T,D) */
  headgate_tensor dk;     /**< (B,Hk,T,D) */
  headgate_tensor dv;     /**< (B,Hv,T,Dv) */
  headgate_tensor ddecay; /**< (B,Hv,T,1|D) */
  headgate_tensor dbeta;  /**< (B,Hv|1,T,1) */
  headgate_tensor dstate; /**< gradient of S_0 (N,Hv,D,Dv) */
} headgate_linear_attention_gradients;

#define HEADGATE_LINEAR_ATTENTION_GRADIENTS_INIT HEADGATE_INIT(headgate_linear_attention_gradients)

/** Computes the gradients of sum(dy*y) + sum(dstate*S_T) from the inputs alone: the states are recomputed. `inputs` and
 * `options` must be those of the forward pass. Sums are f32 or better, and results are deterministic. */
HEADGATE_API headgate_status headgate_linear_attention_backward(const headgate_linear_attention_gradients* gradients,
                                                                const headgate_linear_attention_inputs* inputs,
                                                                const headgate_linear_attention_incoming* incoming,
                                                                const headgate_linear_attention_options* options);

/* --- what linear attention attends to ------------------------------------------------------------------------ */

/** @file
 *
 * **Attention weights of linear attention.** Linear attention equals a weighted sum of values. The weights a_tj are
 * exact and may be negative:
 *
 *     y_t = sum over j <= t of a_tj v_j + S_0^T r_t
 *
 * To compute the weights of query t, start with r = scale . q_t and visit the tokens j = t, t - 1, ..., 1: a_tj is
 * beta_j (k_j . r), and the new r is e^{g_j} (r - a_tj k_j). The rules linear and gated have no beta and do not
 * subtract a_tj k_j. The final r is r_t, the query for the initial state. */

/** The outputs of headgate_linear_attention_weights, which overwrites them; f32 or f64. Each may be absent. */
typedef struct headgate_linear_attention_weights_outputs {
  size_t struct_size;
  headgate_tensor weights;     /**< (B,Ho,R,T): a_tj of the selected queries; 0 for later tokens and for tokens of other
                                  sequences */
  headgate_tensor state_query; /**< (B,Ho,R,D): r_t, the query for S_0 */
} headgate_linear_attention_weights_outputs;

#define HEADGATE_LINEAR_ATTENTION_WEIGHTS_OUTPUTS_INIT HEADGATE_INIT(headgate_linear_attention_weights_outputs)

/** Computes the weights of selected queries. `queries` is required: (1,1,1,R), i32 or i64, 0 <= t < T, in any order.
 * Queries may repeat. In a packed batch, t is a row of q. `inputs` and `options` are those of the forward pass. The
 * elements of v and of state are not read; v determines the number of states. The weights of a query are bitwise
 * identical for any selection of other queries. */
HEADGATE_API headgate_status headgate_linear_attention_weights(const headgate_linear_attention_weights_outputs* outputs,
                                                               const headgate_linear_attention_inputs* inputs,
                                                               const headgate_const_tensor* queries,
                                                               const headgate_linear_attention_options* options);

/** The outputs of headgate_linear_attention_statistics, which overwrites them; f32 or f64. Absent outputs are not
 * computed. N is the number of sequences in a packed batch, otherwise B. A quotient with denominator 0 is 0. A mean of
 * no queries is 0. */
typedef struct headgate_linear_attention_statistics_outputs {
  size_t struct_size;
  headgate_tensor first;             /**< (B,Ho,T,1): a_t1 */
  headgate_tensor first_share;       /**< (B,Ho,T,1): |a_t1| / sum over j of |a_tj| */
  headgate_tensor reach;             /**< (B,Ho,T,1): sum of |a_tj| (t - j) / sum of |a_tj| */
  headgate_tensor absolute_sum;      /**< (B,Ho,T,1): sum of |a_tj| */
  headgate_tensor weight_sum;        /**< (B,Ho,T,1): sum of a_tj */
  headgate_tensor mean_first;        /**< (N,Ho,1,1): mean of first; all five means exclude query 0 */
  headgate_tensor mean_first_share;  /**< (N,Ho,1,1) */
  headgate_tensor mean_reach;        /**< (N,Ho,1,1) */
  headgate_tensor mean_absolute_sum; /**< (N,Ho,1,1) */
  headgate_tensor mean_weight_sum;   /**< (N,Ho,1,1) */
  headgate_tensor mean_decay;        /**< (N,Hv,1,1): mean of e^g over tokens, and over features if each has a decay */
  headgate_tensor mean_beta;         /**< (N,Hv,1,1): mean of beta over tokens */
  headgate_tensor half_life; /**< (N,Hv,1,1): ln 2 / -(mean of g), in tokens; inf if the mean of g is not negative */
  headgate_tensor effective_rank; /**< (N,Hv,1,1): participation ratio of the singular values of S_T, from 1 to
                                     min(D,Dv): |S|^4 / |S^T S|^2 in Frobenius norms; 0 if S_T is 0 */
  headgate_tensor state_norm;     /**< (N,Hv,1,1): the Frobenius norm of S_T */
} headgate_linear_attention_statistics_outputs;

#define HEADGATE_LINEAR_ATTENTION_STATISTICS_OUTPUTS_INIT HEADGATE_INIT(headgate_linear_attention_statistics_outputs)

/** Computes statistics of the weights of all queries in O(T) memory, plus the memory of S_T. `inputs` and `options` are
 * those of the forward pass. v and state are read only for effective_rank and state_norm. Results are bitwise identical
 * for any number of threads. */
HEADGATE_API headgate_status headgate_linear_attention_statistics(
    const headgate_linear_attention_statistics_outputs* outputs, const headgate_linear_attention_inputs* inputs,
    const headgate_linear_attention_options* options);

/* --- short convolution -------------------------------------------------------------------------------------- */

/** @file
 *
 * **Short convolution.** Causal depthwise convolution with an activation, for the inputs of gated linear attention:
 *
 *     y_(t,c) = act( bias_c + sum over j < K of weight_(c,j) . x_(t-K+1+j,c) )
 *
 * Letters: B batch, T tokens, C channels, K taps, N sequences. The state holds the rows of x before the first token:
 * row -i of x is row K-1-i of the state, or 0 without a state. Packed batches are as in linear attention. */

/** The options of the short convolution. Zeros are the defaults. */
typedef struct headgate_short_convolution_options {
  size_t struct_size;
  headgate_gate_fn activation; /**< HEADGATE_GATE_FN_SILU (also for DEFAULT) or NONE; others are refused */
  int32_t threads;             /**< threads, target and backend are as in headgate_attention_options */
  const char* target;
  const char* backend;
} headgate_short_convolution_options;

#define HEADGATE_SHORT_CONVOLUTION_OPTIONS_INIT HEADGATE_INIT(headgate_short_convolution_options)

/** The inputs of the short convolution, with any strides. x and weight are required. */
typedef struct headgate_short_convolution_inputs {
  size_t struct_size;
  headgate_const_tensor x; /**< (B,1,T,C), f32, f64, bf16 or f16 */
  /** (1,1,C,K), 2 <= K <= 8; dtype of x, or f32; the last tap is for the current token */
  headgate_const_tensor weight;
  headgate_const_tensor bias;  /**< (1,1,1,C), dtype of x, or f32; absent means 0 */
  headgate_const_tensor state; /**< (N,1,K-1,C), dtype of x, or f32: the K-1 rows of x before the first token, oldest
                                  first */
  headgate_const_tensor cu_seqlens; /**< (1,1,1,N+1), i32 or i64: non-decreasing bounds of a packed batch, 0 to T */
  /** Lengths after which to write states to `snapshots`: (1,1,N,M), or (1,1,1,M) for all sequences, i32 or i64. Entry
   * [n,m] is a number of tokens of sequence n, from 0 (the old state) to all its tokens. Entries of a row do not
   * decrease. Only the forward pass accepts snapshot_lengths; the backward pass refuses it. */
  headgate_const_tensor snapshot_lengths;
} headgate_short_convolution_inputs;

#define HEADGATE_SHORT_CONVOLUTION_INPUTS_INIT HEADGATE_INIT(headgate_short_convolution_inputs)

/** The outputs of the short convolution, which overwrites them. y is required. */
typedef struct headgate_short_convolution_outputs {
  size_t struct_size;
  headgate_tensor y;     /**< (B,1,T,C), dtype of x */
  headgate_tensor state; /**< the new state, (N,1,K-1,C), dtype of x, or f32: the last K-1 rows of x. If T < K-1, the
                            oldest of these rows come from the old state. May be the same view as inputs.state, to
                            update the state in place */
  /** States after chosen numbers of tokens, (N*M,1,K-1,C), dtype of x, or f32. Row n*M + m holds the K-1 rows of x
   * before token snapshot_lengths[n,m] of sequence n. Required with snapshot_lengths, and refused without. */
  headgate_tensor snapshots;
} headgate_short_convolution_outputs;

#define HEADGATE_SHORT_CONVOLUTION_OUTPUTS_INIT HEADGATE_INIT(headgate_short_convolution_outputs)

/** Computes the convolution and the activation. Sums are f32 or better, and results are rounded to storage once.
 *
 * Results are bitwise identical for any number of threads, and for packed or separate sequences. Several calls may also
 * compute the parts of a sequence, each starting from the state that the call before returned. Their results are
 * bitwise identical to those of one call if the state loses no precision: it needs the dtype of x, or f32 if x is bf16
 * or f16. Snapshots are bitwise identical to the states between such calls. Outputs must not overlap inputs or each
 * other, except for a state updated in place. `options` may be NULL for the defaults. */
HEADGATE_API headgate_status headgate_short_convolution_forward(const headgate_short_convolution_outputs* outputs,
                                                                const headgate_short_convolution_inputs* inputs,
                                                                const headgate_short_convolution_options* options);

/** Incoming gradients. dy is required; an absent dstate means zero. */
typedef struct headgate_short_convolution_incoming {
  size_t struct_size;
  headgate_const_tensor dy;     /**< (B,1,T,C), dtype of x */
  headgate_const_tensor dstate; /**< gradient of the new state (N,1,K-1,C), dtype of x, or f32 */
} headgate_short_convolution_incoming;

#define HEADGATE_SHORT_CONVOLUTION_INCOMING_INIT HEADGATE_INIT(headgate_short_convolution_incoming)

/** Gradients to compute; each may be absent. Existing values are overwritten, not added to. Each gradient has the shape
 * and dtype of its input. */
typedef struct headgate_short_convolution_gradients {
  size_t struct_size;
  headgate_tensor dx;      /**< (B,1,T,C) */
  headgate_tensor dweight; /**< (1,1,C,K), summed over batch and tokens */
  headgate_tensor dbias;   /**< (1,1,1,C) */
  headgate_tensor dstate;  /**< gradient of the old state (N,1,K-1,C) */
} headgate_short_convolution_gradients;

#define HEADGATE_SHORT_CONVOLUTION_GRADIENTS_INIT HEADGATE_INIT(headgate_short_convolution_gradients)

/** Computes the gradients of sum(dy*y) + sum(dstate*(new state)) from the inputs alone. `inputs` and `options` must be
 * those of the forward pass. inputs->state must be the state before the forward pass, even if the forward pass updated
 * it in place. Sums are f32 or better, and results are deterministic. */
HEADGATE_API headgate_status headgate_short_convolution_backward(const headgate_short_convolution_gradients* gradients,
                                                                 const headgate_short_convolution_inputs* inputs,
                                                                 const headgate_short_convolution_incoming* incoming,
                                                                 const headgate_short_convolution_options* options);

/* --- gated norm --------------------------------------------------------------------------------------------- */

/** @file
 *
 * **Gated norm.** Applies an RMS norm and a gate to each row of D features, as after gated linear attention:
 *
 *     r = 1 / sqrt( (1/D) sum x^2 + eps )        y = x . r . weight . g(z)
 */

/** The options of the gated norm. Zeros are the defaults: eps 1e-6 and silu. If has_eps is 0, eps must be 0 too. */
typedef struct headgate_gated_norm_options {
  size_t struct_size;
  double eps;               /**< >= 0, finite; needs has_eps = 1 */
  int32_t has_eps;          /**< 1: use eps; 0: use 1e-6 */
  headgate_gate_fn gate_fn; /**< applied if `gate` is present; HEADGATE_GATE_FN_DEFAULT means silu */
  int32_t threads;          /**< threads, target and backend are as in headgate_attention_options */
  int32_t reserved;         /**< 0 */
  const char* target;
  const char* backend;
} headgate_gated_norm_options;

#define HEADGATE_GATED_NORM_OPTIONS_INIT HEADGATE_INIT(headgate_gated_norm_options)

/** The inputs of the gated norm, with any strides. x is required. */
typedef struct headgate_gated_norm_inputs {
  size_t struct_size;
  headgate_const_tensor x;      /**< (B,H,T,D), D >= 1; f32, f64, bf16 or f16 */
  headgate_const_tensor weight; /**< (1,1|H,1,D), dtype of x, or f32; absent means 1 */
  headgate_const_tensor gate;   /**< z (B,H,T,D), raw gate logits; dtype of x, or f32; absent: y = x . r . weight */
} headgate_gated_norm_inputs;

#define HEADGATE_GATED_NORM_INPUTS_INIT HEADGATE_INIT(headgate_gated_norm_inputs)

/** Computes y (B,H,T,D), dtype of x, which must not overlap the inputs. Sums are f32 or better, and results are rounded
 * to storage once. The squares of a row neither overflow nor underflow. Results are bitwise identical for any number of
 * threads. `options` may be NULL for the defaults. */
HEADGATE_API headgate_status headgate_gated_norm_forward(const headgate_tensor* y,
                                                         const headgate_gated_norm_inputs* inputs,
                                                         const headgate_gated_norm_options* options);

/** Gradients to compute; each may be absent. Existing values are overwritten, not added to. Each gradient has the shape
 * and dtype of its input. */
typedef struct headgate_gated_norm_gradients {
  size_t struct_size;
  headgate_tensor dx;      /**< (B,H,T,D) */
  headgate_tensor dweight; /**< (1,1|H,1,D), summed over all rows that share a weight */
  headgate_tensor dgate;   /**< (B,H,T,D); refused without a gate function */
} headgate_gated_norm_gradients;

#define HEADGATE_GATED_NORM_GRADIENTS_INIT HEADGATE_INIT(headgate_gated_norm_gradients)

/** Computes the gradients of sum(dy*y) from the inputs alone. dy is (B,H,T,D), dtype of x. Sums are f32 or better, and
 * results are deterministic. */
HEADGATE_API headgate_status headgate_gated_norm_backward(const headgate_gated_norm_gradients* gradients,
                                                          const headgate_gated_norm_inputs* inputs,
                                                          const headgate_const_tensor* dy,
                                                          const headgate_gated_norm_options* options);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* HEADGATE_LINEAR_ATTENTION_H_ */
