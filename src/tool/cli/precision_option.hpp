// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "models/decoder/model_precision.hpp"
#include "tool/cli/enum_option.hpp"

namespace headgate::cli {

/// Declares --precision for a verb that runs models. `what` and `rest` complete the help text.
/// `what`: names the operations that use bf16. `rest`: a sentence about what stays in f32.
inline Option declare_precision(VerbOptions& verb, models::ModelPrecision& to, const std::string& what,
                                const std::string& rest) {
  return declare_enum<models::ModelPrecision>(
      verb, std::string(models::kPrecisionOption), to, "NAME",
      "f32 (default), or bf16: " + what +
          " multiply numbers rounded to bf16 and sum them in f32. It pays on CPUs with bf16 dot products (AVX-512 "
          "BF16, "
          "AMX), as `headgate info` says, where many tokens are read at once; other CPUs get no faster. " +
          rest);
}

}  // namespace headgate::cli
