/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "headgate/headgate.h"
#include "library/capi/checks.h"

/* The C API from C99: one head, one query over two keys, checked by hand. */

/* q = 1, k = (0, log 3), v = (0, 4), z = 0, scale 1: weights (1/4, 3/4), o = 3, y = o sigmoid(0) = 3/2. */
typedef struct Problem {
  float q[1], k[2], v[2], z[1];
  float y[1], attn[1], weights[2];
  double lse[1];
  headgate_attention_inputs inputs;
  headgate_attention_outputs outputs;
  headgate_attention_options options;
} Problem;

static void setup(Problem* p) {
  static const headgate_attention_inputs inputs = HEADGATE_ATTENTION_INPUTS_INIT;
  static const headgate_attention_outputs outputs = HEADGATE_ATTENTION_OUTPUTS_INIT;
  static const headgate_attention_options options = HEADGATE_ATTENTION_OPTIONS_INIT;
  p->q[0] = 1.0F;
  p->k[0] = 0.0F;
  p->k[1] = logf(3.0F);
  p->v[0] = 0.0F;
  p->v[1] = 4.0F;
  p->z[0] = 0.0F;
  p->y[0] = p->attn[0] = p->weights[0] = p->weights[1] = kPoison;
  p->lse[0] = kPoison;
  p->inputs = inputs;
  p->outputs = outputs;
  p->options = options;
  p->inputs.q = headgate_make_const_tensor(p->q, HEADGATE_DTYPE_F32, 1, 1, 1, 1);
  p->inputs.k = headgate_make_const_tensor(p->k, HEADGATE_DTYPE_F32, 1, 1, 2, 1);
  p->inputs.v = headgate_make_const_tensor(p->v, HEADGATE_DTYPE_F32, 1, 1, 2, 1);
  p->inputs.gate = headgate_make_const_tensor(p->z, HEADGATE_DTYPE_F32, 1, 1, 1, 1);
  p->outputs.y = headgate_make_tensor(p->y, HEADGATE_DTYPE_F32, 1, 1, 1, 1);
  p->outputs.lse = headgate_make_tensor(p->lse, HEADGATE_DTYPE_F64, 1, 1, 1, 1);
  p->outputs.attn = headgate_make_tensor(p->attn, HEADGATE_DTYPE_F32, 1, 1, 1, 1);
  p->outputs.weights = headgate_make_tensor(p->weights, HEADGATE_DTYPE_F32, 1, 1, 1, 2);
}

static headgate_status forward(Problem* p) { return headgate_attention_forward(&p->outputs, &p->inputs, &p->options); }

static int untouched(const Problem* p) {
  return p->y[0] == kPoison && p->attn[0] == kPoison && p->weights[0] == kPoison && p->weights[1] == kPoison &&
         p->lse[0] == (double)kPoison;
}

static void test_version_and_errors(void) {
  CHECK(strcmp(headgate_version(), HEADGATE_VERSION) == 0);
  CHECK(headgate_default_threads() >= 1);
  CHECK(headgate_last_error() != NULL);
}

static void test_targets(void) {
  const char* compiled[16] = {NULL};
  const char* supported[16] = {NULL};
  const char* active = NULL;
  const char* forced = NULL;
  size_t compiled_count = 0;
  size_t supported_count = 0;
  size_t count = 99;
  size_t i, j;
  CHECK_STATUS(headgate_compiled_targets(compiled, 16, &compiled_count), HEADGATE_OK);
  CHECK_STATUS(headgate_supported_targets(supported, 16, &supported_count), HEADGATE_OK);
  CHECK(1 <= supported_count && supported_count <= compiled_count && compiled_count <= 16);
  CHECK_STATUS(headgate_active_target(&active), HEADGATE_OK);
  for (i = 0; i < supported_count; ++i) {
    int known = 0;
    for (j = 0; j < compiled_count; ++j) known += strcmp(supported[i], compiled[j]) == 0;
    CHECK(known == 1);
    CHECK_STATUS(headgate_set_target(supported[i]), HEADGATE_OK);
    CHECK_STATUS(headgate_active_target(&forced), HEADGATE_OK);
    CHECK(strcmp(forced, supported[i]) == 0);
  }
  CHECK_REFUSED(headgate_set_target("abacus"), "abacus");
  CHECK_SAYS(supported[0]);
  CHECK_STATUS(headgate_set_target(NULL), HEADGATE_OK);
  CHECK(strcmp(headgate_last_error(), "") == 0);
  CHECK_STATUS(headgate_active_target(&forced), HEADGATE_OK);
  CHECK(active != NULL && strcmp(forced, active) == 0);
  CHECK_STATUS(headgate_set_target(""), HEADGATE_OK);

  CHECK_STATUS(headgate_supported_targets(NULL, 0, &count), HEADGATE_OK);
  CHECK(count == supported_count);
  compiled[0] = compiled[1] = NULL;
  CHECK_STATUS(headgate_compiled_targets(compiled, 1, &count), HEADGATE_OK);
  CHECK(compiled[0] != NULL && compiled[1] == NULL && count == compiled_count);
  CHECK_REFUSED(headgate_compiled_targets(NULL, 1, &count),
                "headgate_compiled_targets: names is null but capacity is 1");
  CHECK_REFUSED(headgate_supported_targets(NULL, 0, NULL), "count is null");
  CHECK_REFUSED(headgate_active_target(NULL), "name is null");
}

static void test_make_tensor(void) {
  static const headgate_tensor absent = HEADGATE_ABSENT;
  static const headgate_const_tensor const_absent = HEADGATE_ABSENT;
  const int64_t strides[4] = {3 * 4 * 5, 4 * 5, 5, 1};
  const int64_t shape[4] = {2, 3, 4, 5};
  double data = 0.0;
  const headgate_tensor t = headgate_make_tensor(&data, HEADGATE_DTYPE_F64, 2, 3, 4, 5);
  const headgate_const_tensor c = headgate_make_const_tensor(&data, HEADGATE_DTYPE_F64, 2, 3, 4, 5);
  CHECK(t.data == &data && c.data == &data && absent.data == NULL && const_absent.data == NULL);
  CHECK(t.dtype == HEADGATE_DTYPE_F64 && c.dtype == HEADGATE_DTYPE_F64 && absent.dtype == HEADGATE_DTYPE_NONE);
  CHECK(memcmp(t.shape, shape, sizeof(shape)) == 0 && memcmp(c.shape, shape, sizeof(shape)) == 0);
  CHECK(memcmp(t.strides, strides, sizeof(strides)) == 0 && memcmp(c.strides, strides, sizeof(strides)) == 0);
}

static void test_bthd_and_conversion(void) {
  const int64_t shape[4] = {2, 4, 3, 5};
  const int64_t strides[4] = {3 * 4 * 5, 5, 4 * 5, 1};
  const float from[4] = {1.0F, -2.0F, 0.5F, 0.0F};
  uint16_t half[4] = {0};
  float back[4] = {0};
  int8_t bytes[4] = {0};
  float scale = 0.0F;
  const headgate_tensor t = headgate_make_bthd_tensor(half, HEADGATE_DTYPE_F16, 2, 3, 4, 5);
  const headgate_const_tensor c = headgate_make_const_bthd_tensor(half, HEADGATE_DTYPE_F16, 2, 3, 4, 5);
  CHECK(memcmp(t.shape, shape, sizeof(shape)) == 0 && memcmp(t.strides, strides, sizeof(strides)) == 0);
  CHECK(memcmp(c.shape, shape, sizeof(shape)) == 0 && memcmp(c.strides, strides, sizeof(strides)) == 0);

  const headgate_const_tensor in = headgate_make_const_tensor(from, HEADGATE_DTYPE_F32, 1, 1, 1, 4);
  const headgate_tensor narrow = headgate_make_tensor(half, HEADGATE_DTYPE_BF16, 1, 1, 1, 4);
  const headgate_const_tensor stored = headgate_make_const_tensor(half, HEADGATE_DTYPE_BF16, 1, 1, 1, 4);
  const headgate_tensor wide = headgate_make_tensor(back, HEADGATE_DTYPE_F32, 1, 1, 1, 4);
  CHECK_STATUS(headgate_convert(&narrow, &in), HEADGATE_OK);
  CHECK_STATUS(headgate_convert(&wide, &stored), HEADGATE_OK);
  CHECK(half[0] == 0x3F80);
  for (int n = 0; n < 4; ++n) CHECK(back[n] == from[n]);

  const headgate_tensor to = headgate_make_tensor(bytes, HEADGATE_DTYPE_I8, 1, 1, 1, 4);
  const headgate_tensor factor = headgate_make_tensor(&scale, HEADGATE_DTYPE_F32, 1, 1, 1, 1);
  CHECK_STATUS(headgate_quantize(&to, &factor, &in), HEADGATE_OK);
  CHECK(bytes[0] == 64 && bytes[1] == -127 && bytes[2] == 32 && bytes[3] == 0);
  CHECK_NEAR(scale, 2.0 / 127.0);
  CHECK_REFUSED(headgate_quantize(&wide, &factor, &in), "headgate_quantize: to has dtype f32 but must be i8");
  CHECK_STATUS(headgate_convert(NULL, &in), HEADGATE_INVALID_ARGUMENT);
}

static void test_forward(void) {
  Problem p;
  setup(&p);
  p.options.has_scale = 1;
  p.options.scale = 1.0;
  CHECK_STATUS(forward(&p), HEADGATE_OK);
  CHECK(strcmp(headgate_last_error(), "") == 0);
  CHECK_NEAR(p.y[0], 1.5);
  CHECK_NEAR(p.attn[0], 3.0);
  CHECK_NEAR(p.weights[0], 0.25);
  CHECK_NEAR(p.weights[1], 0.75);
  CHECK_NEAR(p.lse[0], log(4.0));

  setup(&p); /* D = 1: the default scale is 1 too, and so are NULL options */
  CHECK_STATUS(headgate_attention_forward(&p.outputs, &p.inputs, NULL), HEADGATE_OK);
  CHECK_NEAR(p.y[0], 1.5);

  setup(&p);
  p.options.has_scale = 1; /* a scale of 0 is a scale, not the default */
  CHECK_STATUS(forward(&p), HEADGATE_OK);
  CHECK_NEAR(p.attn[0], 2.0);
}

static void test_options(void) {
  Problem p;
  const double log3 = log(3.0);
  const double capped = 0.5 * tanh(log3 / 0.5);
  setup(&p);
  p.options.softcap = 0.5;
  CHECK_STATUS(forward(&p), HEADGATE_OK);
  CHECK_NEAR(p.lse[0], log(1.0 + exp(capped)));

  setup(&p); /* the query stands at position 1, and a window of (0,0) shows it its own key alone */
  p.options.has_window = 1;
  CHECK_STATUS(forward(&p), HEADGATE_OK);
  CHECK_NEAR(p.attn[0], 4.0);
  p.options.window_left = -1;
  CHECK_STATUS(forward(&p), HEADGATE_OK);
  CHECK_NEAR(p.attn[0], 3.0);

  setup(&p);
  p.options.gate_fn = HEADGATE_GATE_FN_SOFTPLUS;
  p.options.gate_op = HEADGATE_GATE_OP_ADD;
  p.options.threads = 2;
  CHECK_STATUS(forward(&p), HEADGATE_OK);
  CHECK_NEAR(p.y[0], 3.0 + log(2.0));
  p.options.struct_size = offsetof(headgate_attention_options, target); /* a caller that does not know the rest */
  p.options.target = "not read";
  CHECK_STATUS(forward(&p), HEADGATE_OK);

  setup(&p);
  p.options.gate_fn = HEADGATE_GATE_FN_NONE;
  CHECK_STATUS(forward(&p), HEADGATE_OK);
  CHECK_NEAR(p.y[0], 3.0);

  setup(&p); /* two queries: causally, the first sees the first key alone */
  p.inputs.q.shape[2] = p.inputs.gate.shape[2] = 2;
  p.inputs.q.strides[2] = p.inputs.gate.strides[2] = 0;
  p.outputs.attn = p.outputs.lse = p.outputs.weights = headgate_make_tensor(NULL, HEADGATE_DTYPE_NONE, 0, 0, 0, 0);
  p.outputs.y = headgate_make_tensor(p.weights, HEADGATE_DTYPE_F32, 1, 1, 2, 1);
  p.options.causality = HEADGATE_CAUSALITY_CAUSAL;
  CHECK_STATUS(forward(&p), HEADGATE_OK);
  CHECK_NEAR(p.weights[0], 0.0);
  CHECK_NEAR(p.weights[1], 1.5);
}

/* However zeros come to be there, they mean what NULL means. */
static void test_zeros_are_the_defaults(void) {
  static const headgate_attention_options macro = HEADGATE_ATTENTION_OPTIONS_INIT;
  const headgate_attention_options by_name = {.struct_size = sizeof(by_name)};
  const headgate_attention_inputs no_inputs = {.struct_size = sizeof(no_inputs)};
  const headgate_attention_outputs no_outputs = {.struct_size = sizeof(no_outputs)};
  headgate_attention_options cleared;
  const headgate_attention_options* all[4] = {NULL, &macro, &by_name, &cleared};
  Problem p;
  int i;
  memset(&cleared, 0, sizeof(cleared));
  cleared.struct_size = sizeof(cleared);
  for (i = 0; i < 4; ++i) {
    const headgate_attention_inputs given = (setup(&p), p.inputs);
    const headgate_attention_outputs wanted = p.outputs;
    p.inputs = no_inputs;
    p.inputs.q = given.q;
    p.inputs.k = given.k;
    p.inputs.v = given.v;
    p.inputs.gate = given.gate;
    p.outputs = no_outputs;
    p.outputs.y = wanted.y;
    p.outputs.attn = wanted.attn;
    CHECK_STATUS(headgate_attention_forward(&p.outputs, &p.inputs, all[i]), HEADGATE_OK);
    CHECK_NEAR(p.attn[0], 3.0); /* 4 if a window hid the other key */
    CHECK_NEAR(p.y[0], 1.5);    /* 3 if no gate were applied */
  }
}

static void test_optional_inputs(void) {
  Problem p;
  const float bias[2] = {0.0F, -INFINITY};
  const unsigned char mask[2] = {0, 1};
  const int32_t key_lengths[1] = {0};
  const double slopes[1] = {log(3.0)};
  const float sinks[1] = {logf(4.0F)};
  setup(&p);
  p.inputs.bias = headgate_make_const_tensor(bias, HEADGATE_DTYPE_F32, 1, 1, 1, 2);
  CHECK_STATUS(forward(&p), HEADGATE_OK);
  CHECK_NEAR(p.attn[0], 0.0);
  CHECK_NEAR(p.weights[0], 1.0);

  setup(&p);
  p.inputs.mask = headgate_make_const_tensor(mask, HEADGATE_DTYPE_BOOL, 1, 1, 1, 2);
  CHECK_STATUS(forward(&p), HEADGATE_OK);
  CHECK_NEAR(p.attn[0], 4.0);

  setup(&p);
  p.inputs.key_lengths = headgate_make_const_tensor(key_lengths, HEADGATE_DTYPE_I32, 1, 1, 1, 1);
  CHECK_STATUS(forward(&p), HEADGATE_OK);
  CHECK(p.y[0] == 0.0F && p.weights[1] == 0.0F && p.lse[0] == -INFINITY);

  setup(&p); /* key 0 is one step away: exp(-log 3) = 1/3 against 3 */
  p.inputs.alibi_slopes = headgate_make_const_tensor(slopes, HEADGATE_DTYPE_F64, 1, 1, 1, 1);
  CHECK_STATUS(forward(&p), HEADGATE_OK);
  CHECK_NEAR(p.weights[0], 0.1);

  setup(&p);
  p.inputs.sinks = headgate_make_const_tensor(sinks, HEADGATE_DTYPE_F32, 1, 1, 1, 1);
  CHECK_STATUS(forward(&p), HEADGATE_OK);
  CHECK_NEAR(p.attn[0], 1.5);
  CHECK_NEAR(p.lse[0], log(8.0));
}

/* dy = 1: do = 1/2, delta = dy y = 3/2, ds = P (do v - delta) = (-3/8, 3/8), dz = dy o g' = 3/4. */
static void test_backward(void) {
  static const headgate_attention_saved saved_init = HEADGATE_ATTENTION_SAVED_INIT;
  static const headgate_attention_incoming incoming_init = HEADGATE_ATTENTION_INCOMING_INIT;
  static const headgate_attention_gradients gradients_init = HEADGATE_ATTENTION_GRADIENTS_INIT;
  Problem p;
  headgate_attention_saved saved = saved_init;
  headgate_attention_incoming incoming = incoming_init;
  headgate_attention_gradients gradients = gradients_init;
  const float bias[2] = {0.0F, 0.0F};
  const double sinks[1] = {-INFINITY};
  const float dy[1] = {1.0F};
  const float dlse[1] = {0.0F};
  float dq[1], dk[2], dv[2], dz[1], dbias[2];
  double dsinks[1];
  setup(&p);
  p.inputs.bias = headgate_make_const_tensor(bias, HEADGATE_DTYPE_F32, 1, 1, 1, 2);
  p.inputs.sinks = headgate_make_const_tensor(sinks, HEADGATE_DTYPE_F64, 1, 1, 1, 1);
  CHECK_STATUS(forward(&p), HEADGATE_OK);
  saved.y = headgate_make_const_tensor(p.y, HEADGATE_DTYPE_F32, 1, 1, 1, 1);
  saved.lse = headgate_make_const_tensor(p.lse, HEADGATE_DTYPE_F64, 1, 1, 1, 1);
  saved.attn = headgate_make_const_tensor(p.attn, HEADGATE_DTYPE_F32, 1, 1, 1, 1);
  incoming.dy = headgate_make_const_tensor(dy, HEADGATE_DTYPE_F32, 1, 1, 1, 1);
  incoming.dlse = headgate_make_const_tensor(dlse, HEADGATE_DTYPE_F32, 1, 1, 1, 1);
  gradients.dq = headgate_make_tensor(dq, HEADGATE_DTYPE_F32, 1, 1, 1, 1);
  gradients.dk = headgate_make_tensor(dk, HEADGATE_DTYPE_F32, 1, 1, 2, 1);
  gradients.dv = headgate_make_tensor(dv, HEADGATE_DTYPE_F32, 1, 1, 2, 1);
  gradients.dgate = headgate_make_tensor(dz, HEADGATE_DTYPE_F32, 1, 1, 1, 1);
  gradients.dbias = headgate_make_tensor(dbias, HEADGATE_DTYPE_F32, 1, 1, 1, 2);
  gradients.dsinks = headgate_make_tensor(dsinks, HEADGATE_DTYPE_F64, 1, 1, 1, 1);
  dq[0] = dk[0] = dk[1] = dv[0] = dv[1] = dz[0] = dbias[0] = dbias[1] = kPoison;
  dsinks[0] = kPoison;

  incoming.dy.shape[3] = 2;
  CHECK_REFUSED(headgate_attention_backward(&gradients, &p.inputs, &saved, &incoming, &p.options),
                "headgate_attention_backward: dy has shape (1,1,1,2)");
  CHECK(dq[0] == kPoison && dk[1] == kPoison && dv[1] == kPoison && dz[0] == kPoison && dbias[1] == kPoison);
  CHECK(dsinks[0] == (double)kPoison);
  incoming.dy.shape[3] = 1;

  CHECK_STATUS(headgate_attention_backward(&gradients, &p.inputs, &saved, &incoming, &p.options), HEADGATE_OK);
  CHECK_NEAR(dq[0], 0.375 * log(3.0));
  CHECK_NEAR(dk[0], -0.375);
  CHECK_NEAR(dk[1], 0.375);
  CHECK_NEAR(dv[0], 0.125);
  CHECK_NEAR(dv[1], 0.375);
  CHECK_NEAR(dz[0], 0.75);
  CHECK_NEAR(dbias[0], -0.375);
  CHECK_NEAR(dbias[1], 0.375);
  CHECK(dsinks[0] == 0.0);

  CHECK_REFUSED(headgate_attention_backward(NULL, &p.inputs, &saved, &incoming, NULL),
                "headgate_attention_backward: gradients is null");
  CHECK_REFUSED(headgate_attention_backward(&gradients, NULL, &saved, &incoming, NULL), "inputs is null");
  CHECK_REFUSED(headgate_attention_backward(&gradients, &p.inputs, NULL, &incoming, NULL), "saved is null");
  CHECK_REFUSED(headgate_attention_backward(&gradients, &p.inputs, &saved, NULL, NULL), "incoming is null");
}

static void test_refusals(void) {
  Problem p;
  setup(&p);
  CHECK_REFUSED(headgate_attention_forward(NULL, &p.inputs, NULL), "headgate_attention_forward: outputs is null");
  CHECK_REFUSED(headgate_attention_forward(&p.outputs, NULL, NULL), "headgate_attention_forward: inputs is null");

  p.inputs.k.shape[3] = 2;
  CHECK_REFUSED(forward(&p), "headgate_attention_forward: k has shape (1,1,2,2) but q has shape (1,1,1,1)");
  CHECK_CHANGE_REFUSED(setup, p.inputs.q.dtype = 42, forward, "q has dtype unknown (42)");

  setup(&p);
  p.options.has_scale = 1;
  p.options.scale = NAN;
  CHECK_REFUSED(forward(&p), "scale is nan");
  CHECK_CHANGE_REFUSED(setup, p.options.has_scale = 2, forward, "options.has_scale is 2 but must be 0 or 1");
  CHECK_CHANGE_REFUSED(setup, p.options.scale = 0.5, forward, "options.scale is 0.5 but has_scale is 0");
  CHECK_CHANGE_REFUSED(setup, p.options.has_window = -1, forward, "options.has_window is -1 but must be 0 or 1");

  setup(&p);
  p.options.window_left = 3;
  p.options.window_right = -1;
  CHECK_REFUSED(forward(&p), "options.window_left is 3 but has_window is 0");
  CHECK_CHANGE_REFUSED(setup, p.options.gate_fn = 1000, forward, "gate_fn is 1000");
  p.options.gate_fn = HEADGATE_GATE_FN_NONE - 1;
  CHECK_REFUSED(forward(&p), "gate_fn is -2");
  CHECK_CHANGE_REFUSED(setup, p.outputs.y.reserved = -1, forward, "y.reserved is -1 but must be 0");
  CHECK(untouched(&p));
}

/* Callers of other versions of the header. */
static void test_struct_sizes(void) {
  Problem p;
  struct {
    headgate_attention_options known;
    unsigned char later[32];
  } newer;
  CHECK_CHANGE_REFUSED(setup, p.options.struct_size = 0, forward,
                       "options.struct_size is 0 but must be 64, or 80, or 88, or 96");
  p.options.struct_size = sizeof(p.options) - 1;
  CHECK_STATUS(forward(&p), HEADGATE_INVALID_ARGUMENT);
  p.options.struct_size = (size_t)-1;
  CHECK_STATUS(forward(&p), HEADGATE_INVALID_ARGUMENT);

  /* The first 0.2, with 64-bit pointers. */
  if (sizeof(void*) == 8) {
    setup(&p);
    p.options.struct_size = 96;
    p.inputs.struct_size = 8 + 15 * 80;
    p.outputs.struct_size = 8 + 4 * 80;
    CHECK_STATUS(forward(&p), HEADGATE_OK);
  }
  CHECK_CHANGE_REFUSED(setup, p.inputs.struct_size = 0, forward, "inputs.struct_size is 0");
  CHECK_CHANGE_REFUSED(setup, p.outputs.struct_size -= 1, forward, "outputs.struct_size is 407");
  CHECK_CHANGE_REFUSED(setup, p.options.reserved = 7, forward, "options.reserved is 7 but must be 0");

  memset(&newer, 0, sizeof(newer));
  setup(&p);
  newer.known = p.options;
  newer.known.gate_fn = HEADGATE_GATE_FN_NONE;
  newer.known.struct_size = sizeof(newer);
  newer.later[20] = 5;
  CHECK_REFUSED(headgate_attention_forward(&p.outputs, &p.inputs, &newer.known),
                "options is of a newer version: its byte ");
  CHECK(untouched(&p));
  newer.later[20] = 0;
  CHECK_STATUS(headgate_attention_forward(&p.outputs, &p.inputs, &newer.known), HEADGATE_OK);
  CHECK_NEAR(p.y[0], 3.0);
}

/* The same problem from a cache: one token at a time, in pages of one. */
static headgate_status append_one(headgate_cache* cache, int64_t sequence, float k, float v) {
  const headgate_const_tensor keys = headgate_make_const_tensor(&k, HEADGATE_DTYPE_F32, 1, 1, 1, 1);
  const headgate_const_tensor values = headgate_make_const_tensor(&v, HEADGATE_DTYPE_F32, 1, 1, 1, 1);
  return headgate_cache_append(cache, &sequence, 1, &keys, &values);
}

static headgate_cache_shape small_cache(int64_t page, int64_t pages) {
  headgate_cache_shape shape = HEADGATE_CACHE_SHAPE_INIT;
  shape.kv_heads = shape.head_dim = shape.value_dim = 1;
  shape.page = page;
  shape.pages = pages;
  return shape;
}

static void attend_cached(const headgate_cache* cache, int64_t sequence, float want) {
  int32_t table[8];
  int64_t key_length = -1;
  int64_t query_offset = -1;
  int64_t length = -1;
  size_t entries = 0;
  Problem p;
  setup(&p);
  p.outputs.weights.dtype = HEADGATE_DTYPE_NONE;
  p.outputs.weights.data = NULL;
  CHECK_STATUS(headgate_cache_length(cache, &length, sequence), HEADGATE_OK);
  CHECK_STATUS(headgate_cache_table_entries(cache, &entries, &sequence, 1), HEADGATE_OK);
  CHECK(entries >= 1 && entries <= 8);
  CHECK_REFUSED(headgate_cache_batch(cache, &p.inputs, table, entries - 1, &key_length, &query_offset, &sequence, 1, 1),
                "but the block table has");
  CHECK(key_length == -1 && p.inputs.block_table.data == NULL);
  CHECK_STATUS(headgate_cache_batch(cache, &p.inputs, table, entries, &key_length, &query_offset, &sequence, 1, 1),
               HEADGATE_OK);
  CHECK(key_length == length && query_offset == length - 1);
  CHECK(p.inputs.block_table.data == table && p.inputs.block_table.shape[3] == (int64_t)entries);
  CHECK(p.inputs.key_lengths.data == &key_length && p.inputs.query_offsets.data == &query_offset);
  CHECK_STATUS(forward(&p), HEADGATE_OK);
  CHECK_NEAR(p.y[0], want);
}

static void test_cache_with_its_own_memory(void) {
  const headgate_cache_shape shape = small_cache(1, 2);
  headgate_cache* cache = NULL;
  headgate_cache_tensors tensors = HEADGATE_CACHE_TENSORS_INIT;
  int64_t first = -1;
  int64_t second = -1;
  int64_t number = -1;
  CHECK_STATUS(headgate_cache_create(&cache, &shape), HEADGATE_OK);
  CHECK(cache != NULL);
  CHECK_STATUS(headgate_cache_add_sequence(cache, &first), HEADGATE_OK);
  CHECK_STATUS(append_one(cache, first, 0.0F, 0.0F), HEADGATE_OK);
  CHECK_STATUS(append_one(cache, first, logf(3.0F), 4.0F), HEADGATE_OK);
  attend_cached(cache, first, 1.5F);

  CHECK_STATUS(headgate_cache_fork(cache, &second, first), HEADGATE_OK);
  CHECK(second != first);
  CHECK_REFUSED(append_one(cache, second, 0.0F, 4.0F),
                "headgate_cache_append: 1 tokens for each of 1 sequences need 1 pages but 0 are free");
  CHECK_STATUS(headgate_cache_grow(cache, 4), HEADGATE_OK);
  CHECK_STATUS(headgate_cache_free_pages(cache, &number), HEADGATE_OK);
  CHECK(number == 2);
  CHECK_STATUS(append_one(cache, second, 0.0F, 4.0F), HEADGATE_OK);
  attend_cached(cache, second, 1.6F); /* weights 1/5, 3/5, 1/5 */
  attend_cached(cache, first, 1.5F);

  CHECK_STATUS(headgate_cache_truncate(cache, second, 1), HEADGATE_OK);
  attend_cached(cache, second, 0.0F);
  CHECK_STATUS(headgate_cache_slide(cache, first, 0, 1), HEADGATE_OK);
  attend_cached(cache, first, 2.0F);
  CHECK_STATUS(headgate_cache_length(cache, &number, first), HEADGATE_OK);
  CHECK(number == 1);
  CHECK_STATUS(headgate_cache_position(cache, &number, first), HEADGATE_OK);
  CHECK(number == 2);
  CHECK_STATUS(headgate_cache_get_tensors(cache, &tensors), HEADGATE_OK);
  CHECK(tensors.k.data != NULL && tensors.k.shape[0] == 4 && tensors.k_scale.dtype == HEADGATE_DTYPE_NONE);

  CHECK_STATUS(headgate_cache_remove_sequence(cache, second), HEADGATE_OK);
  CHECK_REFUSED(headgate_cache_length(cache, &number, second), "headgate_cache_length: ");
  CHECK_SAYS("is no sequence");
  headgate_cache_destroy(cache);
  headgate_cache_destroy(NULL);
}

static void test_cache_over_memory(void) {
  const headgate_cache_shape shape = small_cache(0, 1); /* pages of 16 */
  const headgate_cache_shape larger = small_cache(16, 3);
  double memory[64];
  double more[128];
  headgate_cache_tensors tensors = HEADGATE_CACHE_TENSORS_INIT;
  headgate_cache* cache = NULL;
  int64_t sequence = -1;
  size_t bytes = 0;
  CHECK_STATUS(headgate_cache_bytes(&bytes, &shape), HEADGATE_OK);
  CHECK(bytes >= 2 * 16 * sizeof(float) && bytes <= sizeof memory);
  CHECK_STATUS(headgate_cache_place(&tensors, memory, &shape), HEADGATE_OK);
  CHECK(tensors.k.data == memory && tensors.k.shape[2] == 16 && tensors.v.dtype == HEADGATE_DTYPE_F32);
  CHECK_STATUS(headgate_cache_create_over(&cache, &tensors), HEADGATE_OK);
  CHECK_STATUS(headgate_cache_add_sequence(cache, &sequence), HEADGATE_OK);
  CHECK_STATUS(append_one(cache, sequence, 0.0F, 0.0F), HEADGATE_OK);
  CHECK_REFUSED(headgate_cache_grow(cache, 2), "headgate_cache_grow: the memory is the caller's");
  CHECK_STATUS(headgate_cache_bytes(&bytes, &larger), HEADGATE_OK);
  CHECK(bytes <= sizeof more);
  CHECK_STATUS(headgate_cache_place(&tensors, more, &larger), HEADGATE_OK);
  CHECK_STATUS(headgate_cache_move_to(cache, &tensors), HEADGATE_OK);
  CHECK_STATUS(append_one(cache, sequence, logf(3.0F), 4.0F), HEADGATE_OK);
  attend_cached(cache, sequence, 1.5F);
  headgate_cache_destroy(cache);
}

static void test_cache_with_first_rows(void) {
  headgate_cache_shape shape = small_cache(4, 1);
  headgate_cache* cache = NULL;
  int64_t sequence = -1;
  int32_t page = -1;
  int64_t key_length = -1;
  int64_t query_offset = -1;
  Problem p;
  shape.whole_first = 1;
  CHECK_REFUSED(headgate_cache_create(&cache, &shape), "whole_first is 1 but dtype is f32");
  shape.dtype = HEADGATE_DTYPE_I8;
  CHECK_STATUS(headgate_cache_create(&cache, &shape), HEADGATE_OK);
  CHECK_STATUS(headgate_cache_add_sequence(cache, &sequence), HEADGATE_OK);
  CHECK_STATUS(append_one(cache, sequence, 0.0F, 0.0F), HEADGATE_OK);
  CHECK_STATUS(append_one(cache, sequence, logf(3.0F), 4.0F), HEADGATE_OK);
  attend_cached(cache, sequence, 1.5F);

  setup(&p);
  CHECK_STATUS(headgate_cache_batch(cache, &p.inputs, &page, 1, &key_length, &query_offset, &sequence, 1, 1),
               HEADGATE_OK);
  CHECK(p.inputs.k_first.dtype == HEADGATE_DTYPE_F32 && p.inputs.k_first.shape[2] == 1);
  CHECK(*(const float*)p.inputs.v_first.data == 0.0F && p.inputs.v_first.shape[3] == 1);
  p.inputs.struct_size = offsetof(headgate_attention_inputs, k_first); /* a caller that does not know first rows */
  CHECK_REFUSED(headgate_cache_batch(cache, &p.inputs, &page, 1, &key_length, &query_offset, &sequence, 1, 1),
                "but this call sets members beyond it");
  headgate_cache_destroy(cache);
}

/* Structs of older versions that have every member that the batch sets. The smallest has no block table. */
static void test_cache_batch_of_older_structs(void) {
  const headgate_cache_shape shape = small_cache(1, 2);
  const size_t sizes[] = {offsetof(headgate_attention_inputs, key_bias),
                          offsetof(headgate_attention_inputs, key_indices),
                          offsetof(headgate_attention_inputs, k_first)};
  headgate_cache* cache = NULL;
  int64_t sequence = -1;
  int64_t key_length = -1;
  int64_t query_offset = -1;
  int32_t table[2];
  headgate_attention_inputs inputs = HEADGATE_ATTENTION_INPUTS_INIT;
  CHECK_STATUS(headgate_cache_create(&cache, &shape), HEADGATE_OK);
  CHECK_STATUS(headgate_cache_add_sequence(cache, &sequence), HEADGATE_OK);
  CHECK_STATUS(append_one(cache, sequence, 0.0F, 0.0F), HEADGATE_OK);
  for (size_t n = 0; n < sizeof sizes / sizeof sizes[0]; ++n) {
    inputs.struct_size = sizes[n];
    inputs.block_table.data = NULL;
    CHECK_STATUS(headgate_cache_batch(cache, &inputs, table, 2, &key_length, &query_offset, &sequence, 1, 1),
                 HEADGATE_OK);
    CHECK(inputs.struct_size == sizes[n] && inputs.block_table.data == table);
  }
  inputs.struct_size = offsetof(headgate_attention_inputs, query_offsets);
  key_length = -1;
  CHECK_REFUSED(headgate_cache_batch(cache, &inputs, table, 2, &key_length, &query_offset, &sequence, 1, 1),
                "but this call sets members beyond it");
  CHECK(key_length == -1);
  headgate_cache_destroy(cache);
}

static void test_cache_refusals(void) {
  headgate_cache_shape shape = small_cache(2, 2);
  headgate_cache_tensors tensors = HEADGATE_CACHE_TENSORS_INIT;
  headgate_cache* cache = NULL;
  int64_t sequence = 0;
  shape.dtype = HEADGATE_DTYPE_BOOL;
  CHECK_REFUSED(headgate_cache_create(&cache, &shape), "dtype is bool but must be");
  CHECK(cache == NULL);
  shape = small_cache(2, 2);
  shape.struct_size = 8;
  CHECK_REFUSED(headgate_cache_create(&cache, &shape), "shape.struct_size is 8");
  tensors.struct_size = 0;
  CHECK_REFUSED(headgate_cache_create_over(&cache, &tensors), "tensors.struct_size is 0");
  CHECK_REFUSED(headgate_cache_add_sequence(NULL, &sequence), "headgate_cache_add_sequence: cache is null");
  CHECK_STATUS(headgate_cache_bytes(NULL, &shape), HEADGATE_INVALID_ARGUMENT);
  shape.struct_size = sizeof shape;
  CHECK_REFUSED(headgate_cache_create(NULL, &shape), "cache is null");
  CHECK_STATUS(headgate_cache_create(&cache, &shape), HEADGATE_OK);
  CHECK_REFUSED(headgate_cache_append(cache, NULL, 1, NULL, NULL), "is null");
  CHECK_STATUS(headgate_cache_add_sequence(cache, NULL), HEADGATE_INVALID_ARGUMENT);
  CHECK_STATUS(headgate_cache_add_sequence(cache, &sequence), HEADGATE_OK);
  CHECK(sequence == 0);
  CHECK_REFUSED(headgate_cache_append(cache, &sequence, 1, NULL, NULL), "k is null");
  headgate_cache_destroy(cache);
}

int main(void) {
  test_version_and_errors();
  test_targets();
  test_make_tensor();
  test_bthd_and_conversion();
  test_forward();
  test_options();
  test_zeros_are_the_defaults();
  test_optional_inputs();
  test_backward();
  test_refusals();
  test_struct_sizes();
  test_cache_with_its_own_memory();
  test_cache_over_memory();
  test_cache_with_first_rows();
  test_cache_batch_of_older_structs();
  test_cache_refusals();
  return result_of_checks();
}
