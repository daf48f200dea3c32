/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADGATE_LINEAR_ATTENTION_H_
#define HEADGATE_LINEAR_ATTENTION_H_

/** @file
 * Gated linear attention, and the short convolution and the gated norm that stand around it: the C API of
 * headgate/linear_attention.hpp, short_convolution.hpp and gated_norm.hpp. headgate/headgate.h includes it, and says
 * what holds for all structs and functions. */

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
 * **Linear attention.** Gated linear attention with the delta rule: the recurrence of Gated DeltaNet, exact. A head
 * keeps a state S (D,Dv) in place of keys and values. From its state S_(t-1), for one token after the other:
 *
 *     linear        S_t = S_(t-1) + k_t v_t^T
 *     gated         S_t = e^g_t S_(t-1) + k_t v_t^T
 *     delta         S_t = S_(t-1) + beta_t k_t (v_t - S_(t-1)^T k_t)^T
 *     gated_delta   S_t = e^g_t S_(t-1) + beta_t k_t (v_t - (e^g_t S_(t-1))^T k_t)^T
 *
 *     y_t = scale . S_t^T q_t
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

/** How a token changes the state. */
typedef int32_t headgate_linear_rule;
enum {
  HEADGATE_LINEAR_RULE_GATED_DELTA = 0,
  HEADGATE_LINEAR_RULE_DELTA = 1,
  HEADGATE_LINEAR_RULE_GATED = 2,
  HEADGATE_LINEAR_RULE_LINEAR = 3
};

/** Zeros are the defaults: gated_delta, 1/sqrt(D), no norms. A value that stands where its has_ field is 0 is
 * refused. */
typedef struct headgate_linear_attention_options {
  size_t struct_size;
  double scale; /**< with has_scale 1; finite */
  /** With has_l2_norm 1: eps >= 0. q and k are divided by sqrt(sum x^2 + eps), their L2 norm over D, before anything
   * else. A row of zeros stays zero, and so do its gradients where eps is 0. */
  double l2_norm;
  int32_t has_scale;   /**< 1: scale as given; 0: 1/sqrt(D) */
  int32_t has_l2_norm; /**< 1: q and k are divided by their norms; 0: they are taken as they are */
  headgate_linear_rule rule;
  int32_t threads; /**< as in headgate_attention_options, and so are target and backend */
  const char* target;
  const char* backend;
} headgate_linear_attention_options;

#define HEADGATE_LINEAR_ATTENTION_OPTIONS_INIT \
  { sizeof(headgate_linear_attention_options), 0.0, 0.0, 0, 0, HEADGATE_LINEAR_RULE_GATED_DELTA, 0, NULL, NULL }

/** What the operation reads. q, k and v are required and share one of f32, f64, bf16, f16. Any strides. */
typedef struct headgate_linear_attention_inputs {
  size_t struct_size;
  headgate_const_tensor q;          /**< (B,Hq,T,D), 1 <= D <= 256 */
  headgate_const_tensor k;          /**< (B,Hk,T,D) */
  headgate_const_tensor v;          /**< (B,Hv,T,Dv), 1 <= Dv <= 256 */
  headgate_const_tensor decay;      /**< g (B,Hv,T,1), or (B,Hv,T,D) for a decay of each feature; dtype of q, or f32; a
                                       natural logarithm, -inf to 0 in general. Only with the rules gated and
                                       gated_delta; absent means 0, no decay */
  headgate_const_tensor beta;       /**< (B,Hv,T,1), or (B,1,T,1) for all heads; dtype of q, or f32. Only with the rules
                                       delta and gated_delta; absent means 1 */
  headgate_const_tensor state;      /**< S_0 (N,Hv,D,Dv), f32 or f64; absent means 0 */
  headgate_const_tensor cu_seqlens; /**< (1,1,1,N+1), i32 or i64: a packed batch. 0 first, never decreasing, T last */
} headgate_linear_attention_inputs;

#define HEADGATE_LINEAR_ATTENTION_INPUTS_INIT                                                                     \
  {                                                                                                               \
    sizeof(headgate_linear_attention_inputs), HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, \
        HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT                                                         \
  }

/** What the forward pass overwrites. y is required. */
typedef struct headgate_linear_attention_outputs {
  size_t struct_size;
  headgate_tensor y;     /**< (B,Ho,T,Dv), dtype of q */
  headgate_tensor state; /**< S_T (N,Hv,D,Dv), f32 or f64; may be the very tensor that the inputs have, to update it */
} headgate_linear_attention_outputs;

#define HEADGATE_LINEAR_ATTENTION_OUTPUTS_INIT \
  { sizeof(headgate_linear_attention_outputs), HEADGATE_ABSENT, HEADGATE_ABSENT }

/** The recurrence, for T >= 0 tokens: a prompt, a part of one that goes on from a state, or a single new token. States
 * and sums are f32 or better, whatever the storage. Deterministic: the same bits for any number of threads. Outputs
 * must not overlap inputs or each other, but for the state. `options` may be NULL for the defaults. */
HEADGATE_API headgate_status headgate_linear_attention_forward(const headgate_linear_attention_outputs* outputs,
                                                               const headgate_linear_attention_inputs* inputs,
                                                               const headgate_linear_attention_options* options);

/** Incoming gradients. dy is required; without dstate it counts as zero. */
typedef struct headgate_linear_attention_incoming {
  size_t struct_size;
  headgate_const_tensor dy;     /**< (B,Ho,T,Dv), dtype of q */
  headgate_const_tensor dstate; /**< of S_T (N,Hv,D,Dv), f32 or f64 */
} headgate_linear_attention_incoming;

#define HEADGATE_LINEAR_ATTENTION_INCOMING_INIT \
  { sizeof(headgate_linear_attention_incoming), HEADGATE_ABSENT, HEADGATE_ABSENT }

/** Gradients to write; each may be absent. All are overwritten, never added to. They have the shape and dtype of what
 * they are gradients of, and are summed over the heads that share it. */
typedef struct headgate_linear_attention_gradients {
  size_t struct_size;
  headgate_tensor dq;     /**< (B,Hq,T,D) */
  headgate_tensor dk;     /**< (B,Hk,T,D) */
  headgate_tensor dv;     /**< (B,Hv,T,Dv) */
  headgate_tensor ddecay; /**< (B,Hv,T,1|D) */
  headgate_tensor dbeta;  /**< (B,Hv|1,T,1) */
  headgate_tensor dstate; /**< of S_0 (N,Hv,D,Dv) */
} headgate_linear_attention_gradients;

#define HEADGATE_LINEAR_ATTENTION_GRADIENTS_INIT                                                                     \
  {                                                                                                                  \
    sizeof(headgate_linear_attention_gradients), HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, \
        HEADGATE_ABSENT, HEADGATE_ABSENT                                                                             \
  }

/** Gradients of sum(dy*y) + sum(dstate*S_T), from the inputs alone: the states are computed again. `inputs` and
 * `options` are those of the forward pass. Accumulated in f32 or better; deterministic. */
HEADGATE_API headgate_status headgate_linear_attention_backward(const headgate_linear_attention_gradients* gradients,
                                                                const headgate_linear_attention_inputs* inputs,
                                                                const headgate_linear_attention_incoming* incoming,
                                                                const headgate_linear_attention_options* options);

/* --- what linear attention attends to ------------------------------------------------------------------------ */

/** @file
 *
 * **What it attends to.** Linear attention is a sum of values with exact weights, which may be negative: y_t = sum over
 * j <= t of a_tj v_j + S_0^T r_t. For one t, start from r = scale . q_t; for j = t, t - 1, ..., 1: a_tj = beta_j (k_j .
 * r), and r becomes e^{g_j} (r - a_tj k_j). The rules linear and gated have no beta and subtract nothing. r_t is what
 * is left of r. */

/** What headgate_linear_attention_weights overwrites; each may be absent. f32 or f64. */
typedef struct headgate_linear_attention_weights_outputs {
  size_t struct_size;
  headgate_tensor weights;     /**< (B,Ho,R,T): a_tj of the chosen queries; 0 at later tokens, and at those of other
                                  sequences */
  headgate_tensor state_query; /**< (B,Ho,R,D): r_t, which reads S_0 */
} headgate_linear_attention_weights_outputs;

#define HEADGATE_LINEAR_ATTENTION_WEIGHTS_OUTPUTS_INIT \
  { sizeof(headgate_linear_attention_weights_outputs), HEADGATE_ABSENT, HEADGATE_ABSENT }

/** The weights of chosen queries. `queries`: (1,1,1,R), i32 or i64, 0 <= t < T, in any order, may repeat; rows of q in
 * a packed batch. Required. `inputs` and `options` are those of the forward pass; nothing is read of v, which says how
 * many states there are, and of state. Deterministic, whatever other queries are chosen. */
HEADGATE_API headgate_status headgate_linear_attention_weights(const headgate_linear_attention_weights_outputs* outputs,
                                                               const headgate_linear_attention_inputs* inputs,
                                                               const headgate_const_tensor* queries,
                                                               const headgate_linear_attention_options* options);

/** What headgate_linear_attention_statistics overwrites; each may be absent, and what is absent is not computed. f32 or
 * f64. N: the sequences of a packed batch, else B. Quotients by a sum of 0 are 0, and so are means of no queries. */
typedef struct headgate_linear_attention_statistics_outputs {
  size_t struct_size;
  headgate_tensor first;             /**< (B,Ho,T,1): a_t1 */
  headgate_tensor first_share;       /**< (B,Ho,T,1): |a_t1| / sum over j of |a_tj| */
  headgate_tensor reach;             /**< (B,Ho,T,1): sum of |a_tj| (t - j) / sum of |a_tj| */
  headgate_tensor absolute_sum;      /**< (B,Ho,T,1): sum of |a_tj| */
  headgate_tensor weight_sum;        /**< (B,Ho,T,1): sum of a_tj */
  headgate_tensor mean_first;        /**< (N,Ho,1,1): means over the queries but the first */
  headgate_tensor mean_first_share;  /**< (N,Ho,1,1) */
  headgate_tensor mean_reach;        /**< (N,Ho,1,1) */
  headgate_tensor mean_absolute_sum; /**< (N,Ho,1,1) */
  headgate_tensor mean_weight_sum;   /**< (N,Ho,1,1) */
  headgate_tensor mean_decay; /**< (N,Hv,1,1): mean of e^g over tokens, and over features where each has a decay */
  headgate_tensor mean_beta;  /**< (N,Hv,1,1): mean of beta over tokens */
  headgate_tensor half_life;  /**< (N,Hv,1,1): ln 2 / -(mean of g), in tokens; inf where that mean is not negative */
  headgate_tensor effective_rank; /**< (N,Hv,1,1): |S|^4 / |S^T S|^2 of S_T, in Frobenius norms: the participation
                                     ratio of its singular values, from 1 to min(D,Dv); 0 where S_T is 0 */
  headgate_tensor state_norm;     /**< (N,Hv,1,1): the Frobenius norm of S_T */
} headgate_linear_attention_statistics_outputs;

#define HEADGATE_LINEAR_ATTENTION_STATISTICS_OUTPUTS_INIT                                                     \
  {                                                                                                           \
    sizeof(headgate_linear_attention_statistics_outputs), HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT,  \
        HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, \
        HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT  \
  }

/** Figures of the weights of all queries in O(T) memory beside S_T. `inputs` and `options` are those of the forward
 * pass; v and state are read for effective_rank and state_norm alone. Deterministic: the same bits for any number of
 * threads. */
HEADGATE_API headgate_status headgate_linear_attention_statistics(
    const headgate_linear_attention_statistics_outputs* outputs, const headgate_linear_attention_inputs* inputs,
    const headgate_linear_attention_options* options);

/* --- short convolution -------------------------------------------------------------------------------------- */

/** @file
 *
 * **Short convolution.** The causal depthwise convolution that stands before gated linear attention, with its
 * activation:
 *
 *     y_(t,c) = act( bias_c + sum over j < K of weight_(c,j) . x_(t-K+1+j,c) )
 *
 * Letters: B batch, T tokens, C channels, K taps, N sequences. Row -i of x, before the first token, is row K-1-i of the
 * state, or 0 without a state. Packed batches are those of linear attention. */

/** Zeros are the defaults. */
typedef struct headgate_short_convolution_options {
  size_t struct_size;
  headgate_gate_fn activation; /**< SILU, or NONE for the sum itself; no other. DEFAULT is SILU */
  int32_t threads;             /**< as in headgate_attention_options, and so are target and backend */
  const char* target;
  const char* backend;
} headgate_short_convolution_options;

#define HEADGATE_SHORT_CONVOLUTION_OPTIONS_INIT \
  { sizeof(headgate_short_convolution_options), HEADGATE_GATE_FN_DEFAULT, 0, NULL, NULL }

/** What the operation reads. x and weight are required. Any strides. */
typedef struct headgate_short_convolution_inputs {
  size_t struct_size;
  headgate_const_tensor x;      /**< (B,1,T,C), f32, f64, bf16 or f16 */
  headgate_const_tensor weight; /**< (1,1,C,K), 2 <= K <= 8; dtype of x, or f32; the last tap meets the token itself */
  headgate_const_tensor bias;   /**< (1,1,1,C), dtype of x, or f32; absent means 0 */
  headgate_const_tensor state;  /**< (N,1,K-1,C), dtype of x, or f32: the K-1 rows of x before the first token, oldest
                                   first */
  headgate_const_tensor cu_seqlens; /**< (1,1,1,N+1), i32 or i64: a packed batch. 0 first, never decreasing, T last */
} headgate_short_convolution_inputs;

#define HEADGATE_SHORT_CONVOLUTION_INPUTS_INIT                                                                     \
  {                                                                                                                \
    sizeof(headgate_short_convolution_inputs), HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, \
        HEADGATE_ABSENT                                                                                            \
  }

/** What the forward pass overwrites. y is required. */
typedef struct headgate_short_convolution_outputs {
  size_t struct_size;
  headgate_tensor y;     /**< (B,1,T,C), dtype of x */
  headgate_tensor state; /**< (N,1,K-1,C), dtype of x, or f32: the last K-1 rows of x, from the old state where T < K-1;
                            may be the very tensor that the inputs have, to update it */
} headgate_short_convolution_outputs;

#define HEADGATE_SHORT_CONVOLUTION_OUTPUTS_INIT \
  { sizeof(headgate_short_convolution_outputs), HEADGATE_ABSENT, HEADGATE_ABSENT }

/** Sums are f32 or better, and are rounded once. Every element has the same bits for any number of threads, in a packed
 * batch or by itself, and in one call or in several that pass the state on in the dtype of x. Outputs must not overlap
 * inputs or each other, but for the state. `options` may be NULL for the defaults. */
HEADGATE_API headgate_status headgate_short_convolution_forward(const headgate_short_convolution_outputs* outputs,
                                                                const headgate_short_convolution_inputs* inputs,
                                                                const headgate_short_convolution_options* options);

/** Incoming gradients. dy is required; without dstate it counts as zero. */
typedef struct headgate_short_convolution_incoming {
  size_t struct_size;
  headgate_const_tensor dy;     /**< (B,1,T,C), dtype of x */
  headgate_const_tensor dstate; /**< of the new state (N,1,K-1,C), dtype of x, or f32 */
} headgate_short_convolution_incoming;

#define HEADGATE_SHORT_CONVOLUTION_INCOMING_INIT \
  { sizeof(headgate_short_convolution_incoming), HEADGATE_ABSENT, HEADGATE_ABSENT }

/** Gradients to write; each may be absent. All are overwritten, never added to. They have the shape and dtype of what
 * they are gradients of. */
typedef struct headgate_short_convolution_gradients {
  size_t struct_size;
  headgate_tensor dx;      /**< (B,1,T,C) */
  headgate_tensor dweight; /**< (1,1,C,K), summed over batch and tokens */
  headgate_tensor dbias;   /**< (1,1,1,C) */
  headgate_tensor dstate;  /**< of the old state (N,1,K-1,C) */
} headgate_short_convolution_gradients;

#define HEADGATE_SHORT_CONVOLUTION_GRADIENTS_INIT \
  { sizeof(headgate_short_convolution_gradients), HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT }

/** Gradients of sum(dy*y) + sum(dstate*(new state)), from the inputs alone. `inputs` and `options` are those of the
 * forward pass, with the state as it was before one that has updated it in place. Accumulated in f32 or better;
 * deterministic. */
HEADGATE_API headgate_status headgate_short_convolution_backward(const headgate_short_convolution_gradients* gradients,
                                                                 const headgate_short_convolution_inputs* inputs,
                                                                 const headgate_short_convolution_incoming* incoming,
                                                                 const headgate_short_convolution_options* options);

/* --- gated norm --------------------------------------------------------------------------------------------- */

/** @file
 *
 * **Gated norm.** The norm and the gate that stand behind gated linear attention, of each row of D features:
 *
 *     r = 1 / sqrt( (1/D) sum x^2 + eps )        y = x . r . weight . g(z)
 */

/** Zeros are the defaults: 1e-6, silu. An eps that stands where has_eps is 0 is refused. */
typedef struct headgate_gated_norm_options {
  size_t struct_size;
  double eps;               /**< with has_eps 1; >= 0, finite */
  int32_t has_eps;          /**< 1: eps as given; 0: 1e-6 */
  headgate_gate_fn gate_fn; /**< applied when `gate` is present. DEFAULT is SILU */
  int32_t threads;          /**< as in headgate_attention_options, and so are target and backend */
  int32_t reserved;         /**< 0 */
  const char* target;
  const char* backend;
} headgate_gated_norm_options;

#define HEADGATE_GATED_NORM_OPTIONS_INIT \
  { sizeof(headgate_gated_norm_options), 0.0, 0, HEADGATE_GATE_FN_DEFAULT, 0, 0, NULL, NULL }

/** What the operation reads. x is required. Any strides. */
typedef struct headgate_gated_norm_inputs {
  size_t struct_size;
  headgate_const_tensor x;      /**< (B,H,T,D), D >= 1; f32, f64, bf16 or f16 */
  headgate_const_tensor weight; /**< (1,1|H,1,D), dtype of x, or f32; absent means 1 */
  headgate_const_tensor gate;   /**< z (B,H,T,D), raw gate logits; dtype of x, or f32; absent: y = x . r . weight */
} headgate_gated_norm_inputs;

#define HEADGATE_GATED_NORM_INPUTS_INIT \
  { sizeof(headgate_gated_norm_inputs), HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT }

/** y (B,H,T,D), dtype of x, is overwritten and must not overlap the inputs. Sums are f32 or better, and are rounded
 * once; the squares of a row neither overflow nor underflow. The same bits for any number of threads. `options` may be
 * NULL for the defaults. */
HEADGATE_API headgate_status headgate_gated_norm_forward(const headgate_tensor* y,
                                                         const headgate_gated_norm_inputs* inputs,
                                                         const headgate_gated_norm_options* options);

/** Gradients to write; each may be absent. All are overwritten, never added to. They have the shape and dtype of what
 * they are gradients of. */
typedef struct headgate_gated_norm_gradients {
  size_t struct_size;
  headgate_tensor dx;      /**< (B,H,T,D) */
  headgate_tensor dweight; /**< (1,1|H,1,D), summed over all rows that share it */
  headgate_tensor dgate;   /**< (B,H,T,D); refused without a gate function */
} headgate_gated_norm_gradients;

#define HEADGATE_GATED_NORM_GRADIENTS_INIT \
  { sizeof(headgate_gated_norm_gradients), HEADGATE_ABSENT, HEADGATE_ABSENT, HEADGATE_ABSENT }

/** Gradients of sum(dy*y), from the inputs alone. dy: (B,H,T,D), dtype of x. Accumulated in f32 or better;
 * deterministic. */
HEADGATE_API headgate_status headgate_gated_norm_backward(const headgate_gated_norm_gradients* gradients,
                                                          const headgate_gated_norm_inputs* inputs,
                                                          const headgate_const_tensor* dy,
                                                          const headgate_gated_norm_options* options);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* HEADGATE_LINEAR_ATTENTION_H_ */
