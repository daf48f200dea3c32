/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stddef.h>

#include "headgate/headgate.h"
#include "library/capi/checks.h"

/* Linear attention, the short convolution and the gated norm from C99, checked by hand. */

/* Two tokens of one head with D = Dv = 1, scale 1: q = (1, 1), k = (1, 2), v = (3, 6), e^g = (1, 1/2), beta = (1/2,
 * 1/2) and S_0 = 2. S_1 = 2 + 1/2 (3 - 2) = 5/2; S_2 = 5/4 + 1/2 . 2 (6 - 5/4 . 2) = 19/4. */
typedef struct LinearProblem {
  float q[2], k[2], v[2], g[2], beta[2];
  float y[2];
  double state[1];
  headgate_linear_attention_inputs inputs;
  headgate_linear_attention_outputs outputs;
  headgate_linear_attention_options options;
} LinearProblem;

static void setup_linear(LinearProblem* p) {
  static const headgate_linear_attention_inputs inputs = HEADGATE_LINEAR_ATTENTION_INPUTS_INIT;
  static const headgate_linear_attention_outputs outputs = HEADGATE_LINEAR_ATTENTION_OUTPUTS_INIT;
  static const headgate_linear_attention_options options = HEADGATE_LINEAR_ATTENTION_OPTIONS_INIT;
  p->q[0] = p->q[1] = p->k[0] = 1.0F;
  p->k[1] = 2.0F;
  p->v[0] = 3.0F;
  p->v[1] = 6.0F;
  p->g[0] = 0.0F;
  p->g[1] = logf(0.5F);
  p->beta[0] = p->beta[1] = 0.5F;
  p->y[0] = p->y[1] = kPoison;
  p->state[0] = 2.0;
  p->inputs = inputs;
  p->outputs = outputs;
  p->options = options;
  p->inputs.q = headgate_make_const_tensor(p->q, HEADGATE_DTYPE_F32, 1, 1, 2, 1);
  p->inputs.k = headgate_make_const_tensor(p->k, HEADGATE_DTYPE_F32, 1, 1, 2, 1);
  p->inputs.v = headgate_make_const_tensor(p->v, HEADGATE_DTYPE_F32, 1, 1, 2, 1);
  p->inputs.decay = headgate_make_const_tensor(p->g, HEADGATE_DTYPE_F32, 1, 1, 2, 1);
  p->inputs.beta = headgate_make_const_tensor(p->beta, HEADGATE_DTYPE_F32, 1, 1, 2, 1);
  p->inputs.state = headgate_make_const_tensor(p->state, HEADGATE_DTYPE_F64, 1, 1, 1, 1);
  p->outputs.y = headgate_make_tensor(p->y, HEADGATE_DTYPE_F32, 1, 1, 2, 1);
}

static headgate_status linear_forward(LinearProblem* p) {
  return headgate_linear_attention_forward(&p->outputs, &p->inputs, &p->options);
}

static void test_linear_forward(void) {
  LinearProblem p;
  setup_linear(&p);
  CHECK_STATUS(linear_forward(&p), HEADGATE_OK);
  CHECK_NEAR(p.y[0], 2.5);
  CHECK_NEAR(p.y[1], 4.75);
  CHECK(p.state[0] == 2.0);

  p.outputs.state = headgate_make_tensor(p.state, HEADGATE_DTYPE_F64, 1, 1, 1, 1); /* in place */
  CHECK_STATUS(headgate_linear_attention_forward(&p.outputs, &p.inputs, NULL), HEADGATE_OK);
  CHECK_NEAR(p.state[0], 4.75);

  setup_linear(&p); /* S_1 = 2 + 3, S_2 = 5 + 12 */
  p.options.rule = HEADGATE_LINEAR_RULE_LINEAR;
  p.options.has_scale = 1;
  p.options.scale = 2.0;
  p.inputs.decay = p.inputs.beta = headgate_make_const_tensor(NULL, HEADGATE_DTYPE_NONE, 0, 0, 0, 0);
  CHECK_STATUS(linear_forward(&p), HEADGATE_OK);
  CHECK_NEAR(p.y[0], 10.0);
  CHECK_NEAR(p.y[1], 34.0);

  p.options.has_l2_norm = 1; /* k = (1, 1): S_2 = 2 + 3 + 6 */
  CHECK_STATUS(linear_forward(&p), HEADGATE_OK);
  CHECK_NEAR(p.y[1], 22.0);
}

/* dy = (0, 1): dS_2 = 1, dS_1 = (1 - beta k^2) e^g = -1/2 at the second token. */
static void test_linear_backward(void) {
  headgate_linear_attention_incoming incoming = HEADGATE_LINEAR_ATTENTION_INCOMING_INIT;
  headgate_linear_attention_gradients gradients = HEADGATE_LINEAR_ATTENTION_GRADIENTS_INIT;
  const float dy[2] = {0.0F, 1.0F};
  float dq[2], dk[2], dv[2], dg[2], dbeta[2];
  double dstate[1];
  LinearProblem p;
  setup_linear(&p);
  incoming.dy = headgate_make_const_tensor(dy, HEADGATE_DTYPE_F32, 1, 1, 2, 1);
  gradients.dq = headgate_make_tensor(dq, HEADGATE_DTYPE_F32, 1, 1, 2, 1);
  gradients.dk = headgate_make_tensor(dk, HEADGATE_DTYPE_F32, 1, 1, 2, 1);
  gradients.dv = headgate_make_tensor(dv, HEADGATE_DTYPE_F32, 1, 1, 2, 1);
  gradients.ddecay = headgate_make_tensor(dg, HEADGATE_DTYPE_F32, 1, 1, 2, 1);
  gradients.dbeta = headgate_make_tensor(dbeta, HEADGATE_DTYPE_F32, 1, 1, 2, 1);
  gradients.dstate = headgate_make_tensor(dstate, HEADGATE_DTYPE_F64, 1, 1, 1, 1);
  CHECK_STATUS(headgate_linear_attention_backward(&gradients, &p.inputs, &incoming, &p.options), HEADGATE_OK);
  CHECK_NEAR(dq[0], 0.0);
  CHECK_NEAR(dq[1], 4.75);
  CHECK_NEAR(dk[0], 0.25);
  CHECK_NEAR(dk[1], 0.5);
  CHECK_NEAR(dv[0], -0.25);
  CHECK_NEAR(dv[1], 1.0);
  CHECK_NEAR(dg[0], -0.5);
  CHECK_NEAR(dg[1], -1.25);
  CHECK_NEAR(dbeta[0], -0.5);
  CHECK_NEAR(dbeta[1], 7.0);
  CHECK_NEAR(dstate[0], -0.25);

  CHECK_REFUSED(headgate_linear_attention_backward(NULL, &p.inputs, &incoming, NULL),
                "headgate_linear_attention_backward: gradients is null");
  CHECK_REFUSED(headgate_linear_attention_backward(&gradients, NULL, &incoming, NULL), "inputs is null");
  CHECK_REFUSED(headgate_linear_attention_backward(&gradients, &p.inputs, NULL, NULL), "incoming is null");
}

static void test_linear_refusals(void) {
  LinearProblem p;
  setup_linear(&p);
  CHECK_REFUSED(headgate_linear_attention_forward(NULL, &p.inputs, NULL),
                "headgate_linear_attention_forward: outputs is null");
  p.options.rule = 4;
  CHECK_REFUSED(linear_forward(&p), "rule is 4");
  CHECK_CHANGE_REFUSED(setup_linear, p.options.scale = 2.0, linear_forward, "options.scale is 2 but has_scale is 0");
  CHECK_CHANGE_REFUSED(setup_linear, p.options.l2_norm = 1.0, linear_forward,
                       "options.l2_norm is 1 but has_l2_norm is 0");
  CHECK_CHANGE_REFUSED(setup_linear, p.options.struct_size = 8, linear_forward,
                       "options.struct_size is 8 but must be ");
  CHECK_CHANGE_REFUSED(setup_linear, p.options.precision = HEADGATE_PRECISION_NATIVE16, linear_forward,
                       "precision is native16 but q is f32, not bf16");
  CHECK_CHANGE_REFUSED(setup_linear, p.options.reserved = 7, linear_forward, "options.reserved is 7 but must be 0");
  CHECK_CHANGE_REFUSED(setup_linear, p.inputs.struct_size = 0, linear_forward, "inputs.struct_size is 0");
  CHECK_CHANGE_REFUSED(setup_linear, p.outputs.y.reserved = 5, linear_forward, "y.reserved is 5 but must be 0");
  CHECK(p.y[0] == kPoison && p.y[1] == kPoison);

  /* The options without precision, as they were before, with 64-bit pointers. */
  if (sizeof(void*) == 8) {
    setup_linear(&p);
    p.options.struct_size = 56;
    CHECK_STATUS(linear_forward(&p), HEADGATE_OK);
  }
}

/* Three tokens of one channel, K = 2: x = (1, 2, 3), weight = (10, 1), bias = 1/2 and a state of 4. Without an
 * activation y_0 = 40 + 1 + 1/2, y_1 = 10 + 2 + 1/2, y_2 = 20 + 3 + 1/2, and the new state is 3. */
typedef struct ConvolutionProblem {
  float x[3], weight[2], bias[1], y[3];
  float state[1];
  headgate_short_convolution_inputs inputs;
  headgate_short_convolution_outputs outputs;
  headgate_short_convolution_options options;
} ConvolutionProblem;

static void setup_convolution(ConvolutionProblem* p) {
  static const headgate_short_convolution_inputs inputs = HEADGATE_SHORT_CONVOLUTION_INPUTS_INIT;
  static const headgate_short_convolution_outputs outputs = HEADGATE_SHORT_CONVOLUTION_OUTPUTS_INIT;
  static const headgate_short_convolution_options options = HEADGATE_SHORT_CONVOLUTION_OPTIONS_INIT;
  p->x[0] = 1.0F;
  p->x[1] = 2.0F;
  p->x[2] = 3.0F;
  p->weight[0] = 10.0F;
  p->weight[1] = 1.0F;
  p->bias[0] = 0.5F;
  p->y[0] = p->y[1] = p->y[2] = kPoison;
  p->state[0] = 4.0F;
  p->inputs = inputs;
  p->outputs = outputs;
  p->options = options;
  p->options.activation = HEADGATE_GATE_FN_NONE;
  p->inputs.x = headgate_make_const_tensor(p->x, HEADGATE_DTYPE_F32, 1, 1, 3, 1);
  p->inputs.weight = headgate_make_const_tensor(p->weight, HEADGATE_DTYPE_F32, 1, 1, 1, 2);
  p->inputs.bias = headgate_make_const_tensor(p->bias, HEADGATE_DTYPE_F32, 1, 1, 1, 1);
  p->inputs.state = headgate_make_const_tensor(p->state, HEADGATE_DTYPE_F32, 1, 1, 1, 1);
  p->outputs.y = headgate_make_tensor(p->y, HEADGATE_DTYPE_F32, 1, 1, 3, 1);
}

static headgate_status convolution_forward(ConvolutionProblem* p) {
  return headgate_short_convolution_forward(&p->outputs, &p->inputs, &p->options);
}

static void test_convolution_forward(void) {
  ConvolutionProblem p;
  setup_convolution(&p);
  p.outputs.state = headgate_make_tensor(p.state, HEADGATE_DTYPE_F32, 1, 1, 1, 1); /* in place */
  CHECK_STATUS(convolution_forward(&p), HEADGATE_OK);
  CHECK_NEAR(p.y[0], 41.5);
  CHECK_NEAR(p.y[1], 12.5);
  CHECK_NEAR(p.y[2], 23.5);
  CHECK_NEAR(p.state[0], 3.0);

  setup_convolution(&p); /* zeros: silu; without bias and state the first sum is 1 */
  p.inputs.bias = p.inputs.state = headgate_make_const_tensor(NULL, HEADGATE_DTYPE_NONE, 0, 0, 0, 0);
  CHECK_STATUS(headgate_short_convolution_forward(&p.outputs, &p.inputs, NULL), HEADGATE_OK);
  CHECK_NEAR(p.y[0], 1.0 / (1.0 + exp(-1.0)));
}

/* dy = (1, 0, 1) and a gradient of the new state of 2. */
static void test_convolution_backward(void) {
  headgate_short_convolution_incoming incoming = HEADGATE_SHORT_CONVOLUTION_INCOMING_INIT;
  headgate_short_convolution_gradients gradients = HEADGATE_SHORT_CONVOLUTION_GRADIENTS_INIT;
  const float dy[3] = {1.0F, 0.0F, 1.0F};
  const float dnew[1] = {2.0F};
  float dx[3], dweight[2], dbias[1], dstate[1];
  ConvolutionProblem p;
  setup_convolution(&p);
  incoming.dy = headgate_make_const_tensor(dy, HEADGATE_DTYPE_F32, 1, 1, 3, 1);
  incoming.dstate = headgate_make_const_tensor(dnew, HEADGATE_DTYPE_F32, 1, 1, 1, 1);
  gradients.dx = headgate_make_tensor(dx, HEADGATE_DTYPE_F32, 1, 1, 3, 1);
  gradients.dweight = headgate_make_tensor(dweight, HEADGATE_DTYPE_F32, 1, 1, 1, 2);
  gradients.dbias = headgate_make_tensor(dbias, HEADGATE_DTYPE_F32, 1, 1, 1, 1);
  gradients.dstate = headgate_make_tensor(dstate, HEADGATE_DTYPE_F32, 1, 1, 1, 1);
  CHECK_STATUS(headgate_short_convolution_backward(&gradients, &p.inputs, &incoming, &p.options), HEADGATE_OK);
  CHECK_NEAR(dx[0], 1.0);
  CHECK_NEAR(dx[1], 10.0);
  CHECK_NEAR(dx[2], 3.0); /* 1 . dy_2, and the 2 of the new state */
  CHECK_NEAR(dweight[0], 4.0 + 2.0);
  CHECK_NEAR(dweight[1], 1.0 + 3.0);
  CHECK_NEAR(dbias[0], 2.0);
  CHECK_NEAR(dstate[0], 10.0);

  CHECK_REFUSED(headgate_short_convolution_backward(NULL, &p.inputs, &incoming, NULL),
                "headgate_short_convolution_backward: gradients is null");
  CHECK_REFUSED(headgate_short_convolution_backward(&gradients, NULL, &incoming, NULL), "inputs is null");
  CHECK_REFUSED(headgate_short_convolution_backward(&gradients, &p.inputs, NULL, NULL), "incoming is null");
}

static void test_convolution_refusals(void) {
  ConvolutionProblem p;
  setup_convolution(&p);
  CHECK_REFUSED(headgate_short_convolution_forward(NULL, &p.inputs, NULL),
                "headgate_short_convolution_forward: outputs is null");
  p.options.activation = HEADGATE_GATE_FN_SIGMOID;
  CHECK_REFUSED(convolution_forward(&p), "activation is sigmoid but must be silu or none");
  CHECK_CHANGE_REFUSED(setup_convolution, p.options.struct_size = 8, convolution_forward,
                       "options.struct_size is 8 but must be ");
  CHECK_CHANGE_REFUSED(setup_convolution, p.inputs.struct_size = 0, convolution_forward, "inputs.struct_size is 0");
  CHECK(p.y[0] == kPoison && p.y[2] == kPoison && p.state[0] == 4.0F);
}

/* One row x = (1, 7) with eps 0: r = 1/5. weight = (10, 5), z = (2, 3). */
typedef struct NormProblem {
  float x[2], weight[2], gate[2], y[2];
  headgate_tensor output;
  headgate_gated_norm_inputs inputs;
  headgate_gated_norm_options options;
} NormProblem;

static void setup_norm(NormProblem* p) {
  static const headgate_gated_norm_inputs inputs = HEADGATE_GATED_NORM_INPUTS_INIT;
  static const headgate_gated_norm_options options = HEADGATE_GATED_NORM_OPTIONS_INIT;
  p->x[0] = 1.0F;
  p->x[1] = 7.0F;
  p->weight[0] = 10.0F;
  p->weight[1] = 5.0F;
  p->gate[0] = 2.0F;
  p->gate[1] = 3.0F;
  p->y[0] = p->y[1] = kPoison;
  p->inputs = inputs;
  p->options = options;
  p->options.has_eps = 1;
  p->options.gate_fn = HEADGATE_GATE_FN_IDENTITY;
  p->inputs.x = headgate_make_const_tensor(p->x, HEADGATE_DTYPE_F32, 1, 1, 1, 2);
  p->inputs.weight = headgate_make_const_tensor(p->weight, HEADGATE_DTYPE_F32, 1, 1, 1, 2);
  p->inputs.gate = headgate_make_const_tensor(p->gate, HEADGATE_DTYPE_F32, 1, 1, 1, 2);
  p->output = headgate_make_tensor(p->y, HEADGATE_DTYPE_F32, 1, 1, 1, 2);
}

static headgate_status norm_forward(NormProblem* p) {
  return headgate_gated_norm_forward(&p->output, &p->inputs, &p->options);
}

static void test_norm_forward(void) {
  NormProblem p;
  setup_norm(&p);
  CHECK_STATUS(norm_forward(&p), HEADGATE_OK);
  CHECK_NEAR(p.y[0], 4.0);
  CHECK_NEAR(p.y[1], 21.0);

  p.options.eps = 75.0; /* r = 1/10 */
  p.options.gate_fn = HEADGATE_GATE_FN_NONE;
  CHECK_STATUS(norm_forward(&p), HEADGATE_OK);
  CHECK_NEAR(p.y[0], 1.0);
  CHECK_NEAR(p.y[1], 3.5);

  CHECK_STATUS(headgate_gated_norm_forward(&p.output, &p.inputs, NULL), HEADGATE_OK); /* silu, and an eps of 1e-6 */
  CHECK_NEAR(p.y[0], 2.0 * 2.0 / (1.0 + exp(-2.0)));
}

/* dy = (1, 0): n = (1/5, 7/5), e = (20, 0), mean(e n) = 2; dx = (20 - 2/5, -14/5) / 5. */
static void test_norm_backward(void) {
  headgate_gated_norm_gradients gradients = HEADGATE_GATED_NORM_GRADIENTS_INIT;
  const float dy_values[2] = {1.0F, 0.0F};
  const headgate_const_tensor dy = headgate_make_const_tensor(dy_values, HEADGATE_DTYPE_F32, 1, 1, 1, 2);
  float dx[2], dweight[2], dgate[2];
  NormProblem p;
  setup_norm(&p);
  gradients.dx = headgate_make_tensor(dx, HEADGATE_DTYPE_F32, 1, 1, 1, 2);
  gradients.dweight = headgate_make_tensor(dweight, HEADGATE_DTYPE_F32, 1, 1, 1, 2);
  gradients.dgate = headgate_make_tensor(dgate, HEADGATE_DTYPE_F32, 1, 1, 1, 2);
  CHECK_STATUS(headgate_gated_norm_backward(&gradients, &p.inputs, &dy, &p.options), HEADGATE_OK);
  CHECK_NEAR(dx[0], 3.92);
  CHECK_NEAR(dx[1], -0.56);
  CHECK_NEAR(dweight[0], 0.4);
  CHECK_NEAR(dweight[1], 0.0);
  CHECK_NEAR(dgate[0], 2.0);
  CHECK_NEAR(dgate[1], 0.0);

  CHECK_REFUSED(headgate_gated_norm_backward(NULL, &p.inputs, &dy, NULL),
                "headgate_gated_norm_backward: gradients is null");
  CHECK_REFUSED(headgate_gated_norm_backward(&gradients, NULL, &dy, NULL), "inputs is null");
  CHECK_REFUSED(headgate_gated_norm_backward(&gradients, &p.inputs, NULL, NULL), "dy is null");
}

static void test_norm_refusals(void) {
  NormProblem p;
  setup_norm(&p);
  CHECK_REFUSED(headgate_gated_norm_forward(NULL, &p.inputs, NULL), "headgate_gated_norm_forward: y is null");
  p.options.has_eps = 0;
  p.options.eps = 1.0;
  CHECK_REFUSED(norm_forward(&p), "options.eps is 1 but has_eps is 0");
  CHECK_CHANGE_REFUSED(setup_norm, p.options.reserved = 5, norm_forward, "options.reserved is 5 but must be 0");
  CHECK_CHANGE_REFUSED(setup_norm, p.options.gate_fn = 7, norm_forward,
                       "gate_fn is 7 but must be one of sigmoid, sigmoid2, ns_sigmoid, silu, softplus, identity, none");
  CHECK_CHANGE_REFUSED(setup_norm, p.options.struct_size = 8, norm_forward, "options.struct_size is 8 but must be ");
  CHECK(p.y[0] == kPoison && p.y[1] == kPoison);
}

int main(void) {
  test_linear_forward();
  test_linear_backward();
  test_linear_refusals();
  test_convolution_forward();
  test_convolution_backward();
  test_convolution_refusals();
  test_norm_forward();
  test_norm_backward();
  test_norm_refusals();
  return result_of_checks();
}
