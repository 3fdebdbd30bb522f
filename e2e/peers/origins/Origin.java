// An origin by the JDK's HttpServer: answers each request with what it has read of it, in the field `x-read`.

import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.util.HexFormat;
import java.util.concurrent.Executors;

public class Origin {
    public static void main(String[] arguments) throws Exception {
        var address = new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0]));
        var server = HttpServer.create(address, 0);
        server.setExecutor(Executors.newCachedThreadPool());
        server.createContext("/", exchange -> {
            var content = HexFormat.of().formatHex(exchange.getRequestBody().readAllBytes());
            var read = exchange.getRequestMethod() + " " + exchange.getRequestURI() + " " + content;
            exchange.getResponseHeaders().set("x-read", read);
            exchange.sendResponseHeaders(200, -1);
            exchange.close();
        });
        server.start();
    }
}
