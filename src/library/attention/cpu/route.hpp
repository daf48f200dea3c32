// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "library/attention/problem.hpp"

// Who computes a sequence. Each pass has one table of kernels (route.cc), best first: the first row that does not
// decline a sequence computes it. Rows decide by the problem's sizes and options and by the sequence's own lengths,
// never by the other sequences of a packed batch nor by the number of threads: kernels differ in their last bits, and
// results must be bitwise identical to separate calls.

namespace headgate {

/// Rows of the table of forward passes, in its order.
enum class ForwardRoute : std::uint8_t { empty, few_queries, native16, small_heads, tiles };
/// Rows of the table of backward passes, in its order.
enum class BackwardRoute : std::uint8_t { native16, small_heads, tiles };

/// The row that computes the sequence.
ForwardRoute route_of(const ForwardProblem& problem, const Sequence& sequence);
BackwardRoute route_of(const BackwardProblem& problem, const Sequence& sequence);

/// Runs the kernels of the remaining rows. A kernel calls it once, after it has allocated its own memory of `bytes` and
/// before it writes anything: if an allocation fails, nothing has been written.
using RunRest = std::function<void(std::size_t bytes)>;

}  // namespace headgate
