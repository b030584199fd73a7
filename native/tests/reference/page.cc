#include "reference/page.h"

#include <stdexcept>

namespace reference {
namespace {

std::map<std::string, ReferenceCodec>& rows() {
  static std::map<std::string, ReferenceCodec> rows;
  return rows;
}

}  // namespace

ReferenceRow::ReferenceRow(const char* name, const ReferenceCodec& codec) { rows().emplace(name, codec); }

const std::map<std::string, ReferenceCodec>& reference_codecs() { return rows(); }

const ReferenceCodec& reference_codec(const std::string& name) {
  const auto entry = reference_codecs().find(name);
  if (entry == reference_codecs().end()) {
    throw std::runtime_error("codec \"" + name + "\" has no reference: add one in native/tests/reference");
  }
  return entry->second;
}

}  // namespace reference
