/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HEADGATE_TESTS_LIBRARY_CAPI_CHECKS_H_
#define HEADGATE_TESTS_LIBRARY_CAPI_CHECKS_H_

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "headgate/headgate.h"

/* Checks of the C API from C99, and the number of those that failed. */

static int failures = 0;

#define CHECK(condition)                                                \
  do {                                                                  \
    if (!(condition)) {                                                 \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);   \
      fprintf(stderr, "  last error: \"%s\"\n", headgate_last_error()); \
      ++failures;                                                       \
    }                                                                   \
  } while (0)

/* Near enough for f32 arithmetic on values of size 1; spoilt values fail. */
#define CHECK_NEAR(value, want) CHECK(fabs((double)(value) - (double)(want)) <= 1e-5)

#define CHECK_STATUS(call, status) CHECK((call) == (status))
#define CHECK_SAYS(fragment) CHECK(strstr(headgate_last_error(), (fragment)) != NULL)

/* The call returns HEADGATE_INVALID_ARGUMENT and its message has the fragment. */
#define CHECK_REFUSED(call, fragment)              \
  do {                                             \
    CHECK_STATUS(call, HEADGATE_INVALID_ARGUMENT); \
    CHECK_SAYS(fragment);                          \
  } while (0)

/* Sets up the problem p, makes one change, and checks that forward refuses it. */
#define CHECK_CHANGE_REFUSED(setup, change, forward, fragment) \
  do {                                                         \
    setup(&p);                                                 \
    change;                                                    \
    CHECK_REFUSED(forward(&p), fragment);                      \
  } while (0)

static const float kPoison = -12345.0F;

/* What main returns. */
static int result_of_checks(void) {
  if (failures != 0) fprintf(stderr, "%d checks failed\n", failures);
  return failures == 0 ? 0 : 1;
}

#endif /* HEADGATE_TESTS_LIBRARY_CAPI_CHECKS_H_ */
