package dev.kvasir;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.InputStream;
import java.lang.module.ModuleDescriptor;
import java.lang.reflect.Constructor;
import java.lang.reflect.Executable;
import java.lang.reflect.Field;
import java.lang.reflect.Member;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.lang.reflect.Type;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;

/** What the module shows to everybody: no internal package, and no internal type in what it shows. */
class BordersTest {

  private static final String INTERNAL = "dev.kvasir.internal.";

  private static Path classes() throws Exception {
    return Path.of(KvCache.class.getProtectionDomain().getCodeSource().getLocation().toURI());
  }

  private static Set<String> exported() throws Exception {
    try (InputStream file = Files.newInputStream(classes().resolve("module-info.class"))) {
      return ModuleDescriptor.read(file).exports().stream()
          .filter(export -> !export.isQualified())
          .map(ModuleDescriptor.Exports::source)
          .collect(Collectors.toCollection(TreeSet::new));
    }
  }

  private static List<Class<?>> publicClasses(String packageName) throws Exception {
    List<Class<?>> found = new ArrayList<>();
    try (Stream<Path> files = Files.list(classes().resolve(packageName.replace('.', '/')))) {
      for (Path file : files.filter(each -> each.toString().endsWith(".class")).toList()) {
        String name = packageName + "." + file.getFileName().toString().replace(".class", "");
        Class<?> type = Class.forName(name, false, BordersTest.class.getClassLoader());
        if (isShown(type.getModifiers())) {
          found.add(type);
        }
      }
    }
    return found;
  }

  private static boolean isShown(int modifiers) {
    return Modifier.isPublic(modifiers) || Modifier.isProtected(modifiers);
  }

  @Test
  void everyPackageButInternalOnesIsShown() throws Exception {
    Set<String> packages = new TreeSet<>();
    try (Stream<Path> files = Files.walk(classes().resolve("dev/kvasir"))) {
      for (Path file : files.filter(each -> each.toString().endsWith(".class")).toList()) {
        packages.add(classes().relativize(file.getParent()).toString().replace('/', '.'));
      }
    }
    packages.removeIf(name -> (name + ".").startsWith(INTERNAL));
    // The mapping for JavaCPP; and tests, where they lie in the same folder.
    packages.removeAll(Set.of("dev.kvasir.presets", "dev.kvasir.conformance", "dev.kvasir.exhausted"));
    assertEquals(packages, exported());
  }

  @Test
  void nothingThatIsShownMentionsAnInternalType() throws Exception {
    List<String> findings = new ArrayList<>();
    int seen = 0;
    for (String packageName : exported()) {
      for (Class<?> type : publicClasses(packageName)) {
        seen++;
        check(findings, type, List.of(type.getGenericInterfaces()));
        if (type.getGenericSuperclass() != null) {
          check(findings, type, List.of(type.getGenericSuperclass()));
        }
        for (Field field : type.getDeclaredFields()) {
          checkMember(findings, field, List.of(field.getGenericType()));
        }
        for (Method method : type.getDeclaredMethods()) {
          checkMember(findings, method, List.of(method.getGenericReturnType()));
          checkMember(findings, method, parameters(method));
        }
        for (Constructor<?> constructor : type.getDeclaredConstructors()) {
          checkMember(findings, constructor, parameters(constructor));
        }
      }
    }
    assertTrue(seen > 50, "only " + seen + " types");
    assertEquals(List.of(), findings);
  }

  private static List<Type> parameters(Executable executable) {
    return Stream.of(executable.getGenericParameterTypes(), executable.getGenericExceptionTypes())
        .flatMap(Stream::of)
        .toList();
  }

  private static void checkMember(List<String> findings, Member member, List<Type> types) {
    if (isShown(member.getModifiers())) {
      check(findings, member, types);
    }
  }

  private static void check(List<String> findings, Object where, List<Type> types) {
    types.stream()
        .filter(type -> type.getTypeName().contains(INTERNAL))
        .forEach(type -> findings.add(where + ": " + type));
  }
}
