// SPDX-License-Identifier: Apache-2.0
#ifndef HEADGATE_HEADGATE_HPP_
#define HEADGATE_HEADGATE_HPP_

// Includes the whole C++ API. The C API is in headgate/headgate.h.

#include "headgate/attention.hpp"         // IWYU pragma: export
#include "headgate/cache.hpp"             // IWYU pragma: export
#include "headgate/convert.hpp"           // IWYU pragma: export
#include "headgate/error.hpp"             // IWYU pragma: export
#include "headgate/gated_norm.hpp"        // IWYU pragma: export
#include "headgate/linear_attention.hpp"  // IWYU pragma: export
#include "headgate/linear_attention_statistics.hpp"
#include "headgate/merge.hpp"              // IWYU pragma: export
#include "headgate/runtime.hpp"            // IWYU pragma: export
#include "headgate/short_convolution.hpp"  // IWYU pragma: export
#include "headgate/statistics.hpp"         // IWYU pragma: export
#include "headgate/tensor.hpp"             // IWYU pragma: export
#include "headgate/version.h"              // IWYU pragma: export

#endif  // HEADGATE_HEADGATE_HPP_
