// SPDX-License-Identifier: Apache-2.0
#include "models/families/family.hpp"

// Describes models written by `headgate train` and `headgate convert`. config.json has the keys of kConfigKeys. It also
// has gate_layout if the gate's rows are stored among the rows of q.

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
