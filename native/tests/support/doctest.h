// doctest, with C strings printed as text and not as addresses.
//
// (Its own switch for that, DOCTEST_CONFIG_TREAT_CHAR_STAR_AS_STRING, does not compile in version 2.4.9.)
#pragma once

#include <doctest/doctest.h>

namespace doctest {

template <>
struct StringMaker<const char*> {
  static String convert(const char* text) { return text; }
};

}  // namespace doctest
