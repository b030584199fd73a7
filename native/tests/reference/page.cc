#include "reference/page.h"

#include <stdexcept>

#include "reference/f16_page.h"
#include "reference/pattern_page.h"
#include "reference/progressive_page.h"
#include "reference/tiered_page.h"
#include "reference/uniform_page.h"

namespace reference {

const std::map<std::string, ReferenceCodec>& reference_codecs() {
  ReferenceCodec trained = {};
  trained.trained = true;
  static const std::map<std::string, ReferenceCodec> table = {
      {"commvq", trained},
      {"f16", f16_reference()},
      {"pattern", pattern_reference()},
      {"progressive", progressive_reference()},
      {"tiered", tiered_reference()},
      {"uniform", uniform_reference()},
  };
  return table;
}

const ReferenceCodec& reference_codec(const std::string& name) {
  const auto entry = reference_codecs().find(name);
  if (entry == reference_codecs().end()) {
    throw std::runtime_error("codec \"" + name + "\" has no reference: add one to native/tests/reference/page.cc");
  }
  return entry->second;
}

}  // namespace reference
