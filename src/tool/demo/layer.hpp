// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace headgate::demo {

/// Runs gated attention at the size of a real layer, forward and backward, and prints its speed beside this machine's
/// limits. Compares sampled rows with the oracle; returns false if one is out of tolerance.
bool show_layer(int threads);

}  // namespace headgate::demo
