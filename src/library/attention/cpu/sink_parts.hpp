// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "library/core/view.hpp"

namespace headgate {

/// Memory for the terms of dsinks, (query tiles of all sequences, Hq), not initialised. Up to 1 MiB stays with the
/// calling thread for its next call. It is apart from the block of the arena, which the kernels take.
View<double, 2> take_sink_parts(std::int64_t tiles, std::int64_t Hq);

/// Frees what the calling thread keeps.
void release_sink_parts();

}  // namespace headgate
