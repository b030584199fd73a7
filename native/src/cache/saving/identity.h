// What the bytes of a cache's sequences mean, as text: everything that must be the same where they are restored. Its
// SHA-256 is the fingerprint. Lines are compared one by one where two of them differ, so each says one thing.
#pragma once

#include <string>
#include <vector>

#include "base/sha256.h"
#include "engine/layer_plan.h"

namespace kvasir {

struct Identity {
  // model: what the caller told of it, or empty.
  Identity(const std::vector<LayerPlan>& plans, const std::string& model);

  const std::string text;
  const Digest fingerprint;
};

}  // namespace kvasir
