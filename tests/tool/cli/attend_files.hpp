// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "headgate/attention.hpp"
#include "headgate/tensor.hpp"
#include "verify/check.hpp"

namespace headgate::testing {

enum class Order { c, fortran };

/// Writes the last `rank` dimensions of `view` (those before it are 1) as an .npy file; bf16 as f32.
void write_npy(const std::string& path, const ConstTensorView& view, std::size_t rank, Order order = Order::c);

/// Reads an .npy file of the view's size into it, whatever the rank.
void read_npy_into(const std::string& path, const TensorView& view);

/// Makes `cases` run `headgate attend` on files in `directory` where it would call the library. The forward pass
/// writes no `attn`, and the backward pass runs the forward pass again.
verify::Kernels kernels_by_command(const std::string& directory, Order order);

}  // namespace headgate::testing
