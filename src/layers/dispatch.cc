// SPDX-License-Identifier: Apache-2.0
#include "layers/dispatch.hpp"

#include <string>

#include "headgate/runtime.hpp"
#include "hwy/targets.h"

namespace headgate::layers {

std::size_t target_index() {
  const std::string active = active_target();  // short enough to need no heap
  for (const TargetRow& row : kTargetRows) {
    if (active == row.name) {
      hwy::ChosenTarget chosen;
      chosen.Update(row.bit);
      return chosen.GetIndex();
    }
  }
  return HWY_MAX_DYNAMIC_TARGETS + 1;  // the fallback's place
}

}  // namespace headgate::layers
