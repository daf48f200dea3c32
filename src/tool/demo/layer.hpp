// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace headgate::demo {

/// Runs gated attention forward and backward at the size of a real layer.
/// Prints its speed beside this machine's peak rates.
/// Compares sampled rows with the oracle and returns false if an error exceeds its tolerance.
bool show_layer(int threads);

}  // namespace headgate::demo
