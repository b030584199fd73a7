import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.jar.JarEntry;
import java.util.jar.JarFile;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import javax.xml.parsers.DocumentBuilderFactory;
import javax.xml.xpath.XPath;
import javax.xml.xpath.XPathFactory;
import org.w3c.dom.Document;

/**
 * Holds a repository of artifacts to what Maven Central accepts, and to what we promise of them. Run by ci/release-dry-run.
 *
 * <p>Every POM has a name, a description, a URL, a licence, developers and a source repository, and names no snapshot; every
 * jar has its sources and its documentation beside it, a licence in it, and entries in order without times of their
 * own; what the BOM and the platforms list is there.
 */
public final class CheckRelease {

  private static final List<String> WANTED =
      List.of(
          "groupId", "artifactId", "version", "name", "description", "url", "licenses/license/name",
          "licenses/license/url", "developers/developer/name", "scm/connection", "scm/url");

  private final Path repository;
  private final String version;
  private final List<String> findings = new ArrayList<>();
  private final XPath paths = XPathFactory.newInstance().newXPath();

  private CheckRelease(Path repository, String version) {
    this.repository = repository;
    this.version = version;
  }

  /** Arguments: the repository, the version. */
  public static void main(String[] args) throws Exception {
    CheckRelease check = new CheckRelease(Path.of(args[0]), args[1]);
    List<Path> poms;
    try (Stream<Path> files = Files.walk(check.repository)) {
      poms = files.filter(path -> path.toString().endsWith(".pom")).sorted().collect(Collectors.toList());
    }
    if (poms.isEmpty()) {
      check.findings.add("no POM in " + check.repository);
    }
    Set<String> names = new TreeSet<>();
    for (Path pom : poms) {
      names.add(check.pom(pom));
    }
    for (String name : List.of("kvasir", "kvasir-platform", "kvasir-bom", "kvasir-prefix", "kvasir-redis", "kvasir-runner")) {
      if (!names.contains(name)) {
        check.findings.add(name + " is not there");
      }
    }
    check.findings.forEach(System.out::println);
    System.exit(check.findings.isEmpty() ? 0 : 1);
  }

  private String pom(Path file) throws Exception {
    Document document = DocumentBuilderFactory.newInstance().newDocumentBuilder().parse(file.toFile());
    for (String path : WANTED) {
      if (text(document, path).isEmpty()) {
        findings.add(file + " has no " + path);
      }
    }
    if (Files.readString(file).contains("SNAPSHOT")) {
      findings.add(file + " names a snapshot");
    }
    String name = text(document, "artifactId");
    if (!text(document, "packaging").equals("pom")) {
      for (String kind : List.of("", "-sources", "-javadoc")) {
        jar(file.resolveSibling(name + "-" + version + kind + ".jar"), kind);
      }
    }
    // Those of other projects are theirs to keep.
    var dependencies =
        (org.w3c.dom.NodeList)
            paths.evaluate(
                "//*[local-name()='dependency'][*[local-name()='groupId']='dev.kvasir']",
                document, javax.xml.xpath.XPathConstants.NODESET);
    for (int i = 0; i < dependencies.getLength(); i++) {
      dependency(file, dependencies.item(i));
    }
    return name;
  }

  private void dependency(Path pom, org.w3c.dom.Node node) throws Exception {
    String artifact = paths.evaluate("*[local-name()='artifactId']", node);
    String classifier = paths.evaluate("*[local-name()='classifier']", node);
    String wanted = paths.evaluate("*[local-name()='version']", node);
    Path folder = repository.resolve("dev/kvasir").resolve(artifact).resolve(wanted);
    Path jar = folder.resolve(artifact + "-" + wanted + (classifier.isEmpty() ? "" : "-" + classifier) + ".jar");
    if (!Files.exists(jar)) {
      findings.add(pom + " names " + repository.relativize(jar) + ", which is not there");
    } else if (!classifier.isEmpty()) {
      jar(jar, "-natives");
    }
  }

  private String text(Document document, String path) throws Exception {
    String steps =
        Stream.of(path.split("/")).map(step -> "/*[local-name()='" + step + "']").collect(Collectors.joining());
    return paths.evaluate("/*[local-name()='project']" + steps, document).strip();
  }

  private void jar(Path file, String kind) throws IOException {
    if (!Files.exists(file)) {
      findings.add(file + " is not there");
      return;
    }
    try (JarFile jar = new JarFile(file.toFile())) {
      List<JarEntry> entries = jar.stream().collect(Collectors.toList());
      Set<Long> times = new HashSet<>();
      Set<String> seen = new HashSet<>();
      for (JarEntry entry : entries) {
        times.add(entry.getTime());
        if (!seen.add(entry.getName())) {
          findings.add(file + " has " + entry.getName() + " twice");
        }
      }
      if (times.size() != 1) {
        findings.add(file + " has entries of " + times.size() + " times");
      }
      if ((kind.isEmpty() || kind.equals("-natives")) && !seen.contains("META-INF/LICENSE")) {
        findings.add(file + " has no licence");
      }
      if (kind.equals("-natives") && seen.stream().noneMatch(name -> name.endsWith(".so") || name.endsWith(".dll"))) {
        findings.add(file + " has no library");
      }
    }
  }
}
