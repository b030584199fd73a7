// Command lines of pairs, --name value, the same for every benchmark: a table says where values go.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace bench {

inline std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream in(list);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

template <class Number>
Number number(const std::string& text) {
  std::istringstream in(text);
  Number value{};
  if (!(in >> value) || !in.eof() || value < 0) throw std::invalid_argument("'" + text + "' is no number from 0 on");
  return value;
}

// An option and where its value goes: a number, numbers or words with commas between them, a text.
struct Option {
  Option(const char* name, int* to) : name(name), set([to](auto& text) { *to = number<int>(text); }) {}
  Option(const char* name, double* to) : name(name), set([to](auto& text) { *to = number<double>(text); }) {}
  Option(const char* name, std::string* to) : name(name), set([to](auto& text) { *to = text; }) {}
  Option(const char* name, std::vector<std::string>* to) : name(name), set([to](auto& text) { *to = split(text); }) {}
  Option(const char* name, std::vector<int>* to)
      : name(name), set([to](auto& text) {
          to->clear();
          for (const std::string& part : split(text)) to->push_back(number<int>(part));
        }) {}
  // One of two words: false for the first.
  Option(const char* name, bool* to, const char* no, const char* yes)
      : name(name), set([=](auto& text) {
          if (text != no && text != yes) throw std::invalid_argument("'" + text + "' is not " + no + " or " + yes);
          *to = text == yes;
        }) {}

  const char* name;
  std::function<void(const std::string&)> set;
};

// Ends the program where it is asked for help, or for what it does not know.
inline void parse(int argc, char** argv, const std::string& usage, const std::vector<Option>& options) {
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--help" || name == "-h") {
      std::cout << usage;
      std::exit(0);
    }
    try {
      if (i + 1 == argc) throw std::invalid_argument("it needs a value");
      const Option* found = nullptr;
      for (const Option& option : options) {
        if (name == option.name) found = &option;
      }
      if (found == nullptr) throw std::invalid_argument("there is no such option");
      found->set(argv[i + 1]);
    } catch (const std::invalid_argument& problem) {
      std::cerr << name << ": " << problem.what() << "\n" << usage;
      std::exit(2);
    }
  }
}

// The usage is the list of the options.
inline void parse(int argc, char** argv, const std::vector<Option>& options) {
  std::string usage = std::string("usage: ") + argv[0];
  for (const Option& option : options) usage += std::string(" [") + option.name + " …]";
  parse(argc, argv, usage + "\n", options);
}

// What was asked, as the first line of the output.
inline void print_command(int argc, char** argv) {
  for (int i = 0; i < argc; ++i) std::printf("%s ", argv[i]);
}

}  // namespace bench
