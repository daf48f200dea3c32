/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "headgate/headgate.h"

/* One query and one key: the weight is 1, so y = sigmoid(z) * v. A bad argument is a status and a message. */
int main(void) {
  const float q[] = {1.0F, 2.0F};
  const float k[] = {3.0F, 4.0F};
  const float v[] = {5.0F, -6.0F};
  const float z[] = {0.0F, 0.0F};
  float y[] = {NAN, NAN};

  headgate_attention_inputs inputs = HEADGATE_ATTENTION_INPUTS_INIT;
  inputs.q = headgate_make_const_tensor(q, HEADGATE_DTYPE_F32, 1, 1, 1, 2);
  inputs.k = headgate_make_const_tensor(k, HEADGATE_DTYPE_F32, 1, 1, 1, 2);
  inputs.v = headgate_make_const_tensor(v, HEADGATE_DTYPE_F32, 1, 1, 1, 2);
  inputs.gate = headgate_make_const_tensor(z, HEADGATE_DTYPE_F32, 1, 1, 1, 2);
  headgate_attention_outputs outputs = HEADGATE_ATTENTION_OUTPUTS_INIT;
  outputs.y = headgate_make_tensor(y, HEADGATE_DTYPE_F32, 1, 1, 1, 2);

  if (headgate_attention_forward(&outputs, &inputs, NULL) != HEADGATE_OK) {
    fprintf(stderr, "%s\n", headgate_last_error());
    return 1;
  }
  for (int d = 0; d < 2; ++d) {
    const float difference = y[d] - v[d] / 2.0F;
    if (!(difference < 1e-5F && difference > -1e-5F)) {
      fprintf(stderr, "y[%d] = %g\n", d, (double)y[d]);
      return 1;
    }
  }

  headgate_attention_options options = HEADGATE_ATTENTION_OPTIONS_INIT;
  options.dropout = 1.0;
  if (headgate_attention_forward(&outputs, &inputs, &options) != HEADGATE_INVALID_ARGUMENT) {
    fprintf(stderr, "a dropout of 1 was taken\n");
    return 1;
  }
  const int named = strstr(headgate_last_error(), "dropout") != NULL;
  return named && strcmp(headgate_version(), HEADGATE_VERSION) == 0 ? 0 : 1;
}
