/* SPDX-License-Identifier: Apache-2.0 */
/* Uses the C API: computes a worked problem of two tokens, then makes an invalid call and prints its error. */
#include <math.h>
#include <stdio.h>

#include "headgate/headgate.h"

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, headgate_last_error());
  return 1;
}

int main(void) {
  /* Identity projections of X: q = k = v = z = X. */
  const float x[2][2] = {{1.0F, 0.5F}, {0.5F, 1.0F}};
  const float expected[2][2] = {{0.5644F, 0.4531F}, {0.4531F, 0.5644F}};
  float y[2][2] = {{NAN, NAN}, {NAN, NAN}};

  headgate_attention_inputs inputs = HEADGATE_ATTENTION_INPUTS_INIT;
  inputs.q = headgate_make_const_tensor(x, HEADGATE_DTYPE_F32, 1, 1, 2, 2); /* (B,H,T,D) */
  inputs.k = inputs.q;
  inputs.v = inputs.q;
  inputs.gate = inputs.q;
  headgate_attention_outputs outputs = HEADGATE_ATTENTION_OUTPUTS_INIT;
  outputs.y = headgate_make_tensor(y, HEADGATE_DTYPE_F32, 1, 1, 2, 2);

  if (headgate_attention_forward(&outputs, &inputs, NULL) != HEADGATE_OK) return failed("forward");
  for (int i = 0; i < 2; ++i) {
    printf("%.4f %.4f\n", (double)y[i][0], (double)y[i][1]);
    for (int d = 0; d < 2; ++d) {
      if (!(fabsf(y[i][d] - expected[i][d]) <= 0.00005F)) return failed("a wrong value");
    }
  }

  headgate_attention_options options = HEADGATE_ATTENTION_OPTIONS_INIT;
  options.dropout = 1.0;
  if (headgate_attention_forward(&outputs, &inputs, &options) != HEADGATE_INVALID_ARGUMENT) {
    return failed("a dropout of 1 was taken");
  }
  printf("%s\n", headgate_last_error());
  return 0;
}
