// Command lines of pairs: --name value, a number, numbers with commas between them, or text.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <vector>

namespace bench {

inline std::vector<int> numbers(const char* text) {
  std::vector<int> list;
  for (const char* p = text; p != nullptr && *p != 0; p = std::strchr(p, ','), p = p == nullptr ? p : p + 1) {
    list.push_back(std::atoi(p));
  }
  return list;
}

// An option and where its value goes.
struct Option {
  Option(const char* name, int* number) : name(name), number(number) {}
  Option(const char* name, std::vector<int>* list) : name(name), list(list) {}
  Option(const char* name, const char** text) : name(name), text(text) {}

  void set(const char* value) const {
    if (number != nullptr) *number = std::atoi(value);
    if (list != nullptr) *list = numbers(value);
    if (text != nullptr) *text = value;
  }

  const char* name;
  int* number = nullptr;
  std::vector<int>* list = nullptr;
  const char** text = nullptr;
};

// Ends the program where it does not know one.
inline void parse(int argc, char** argv, std::initializer_list<Option> options) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const Option* found = nullptr;
    for (const Option& option : options) {
      if (std::strcmp(argv[i], option.name) == 0) found = &option;
    }
    if (found == nullptr) {
      std::fprintf(stderr, "unknown option %s\n", argv[i]);
      std::exit(2);
    }
    found->set(argv[i + 1]);
  }
}

// What was asked, as the first line of the output.
inline void print_command(int argc, char** argv) {
  for (int i = 0; i < argc; ++i) std::printf("%s ", argv[i]);
}

}  // namespace bench
