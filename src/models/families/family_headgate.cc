// SPDX-License-Identifier: Apache-2.0
#include "models/families/family.hpp"

// Describes models written by `headgate train` and `headgate convert`. config.json has the keys of kConfigKeys. If the
// gate's rows are stored among the rows of q, it also has the key gate_layout.

namespace headgate::models {

const Family kHeadgate{.name = "headgate",
                       .model_class = "HeadgateForCausalLM",
                       .architecture = {},
                       .complete = nullptr,
                       .finish = [](ConfigReader& in, FileConfig& out) {
                         const io::Json* layout = in.find("gate_layout");
                         if (layout != nullptr) in.read(out.layout, "gate_layout", *layout);
                         require_fusable(out.layout, out.config);
                       }};

}  // namespace headgate::models
