// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "headgate/runtime.hpp"

namespace headgate {

/// Restores the default choice of native16's products.
class ProductsGuard {
 public:
  ProductsGuard() = default;
  ProductsGuard(const ProductsGuard&) = delete;
  ProductsGuard& operator=(const ProductsGuard&) = delete;
  ~ProductsGuard() { set_native16_products(""); }
};

/// Calls visit(products) for "", which stands for the default, and for each kind of products of this CPU.
template <class Visit>
void for_each_products(const Visit& visit) {
  const ProductsGuard guard;
  visit(std::string());
  for (const std::string& products : supported_native16_products()) {
    set_native16_products(products);
    visit(products);
  }
}

}  // namespace headgate
